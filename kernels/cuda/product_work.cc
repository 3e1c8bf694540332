#include "kernels/cuda/product_work.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <memory>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/status.h"
#include "kernels/cuda/product_kernels.h"

namespace agmm {
namespace {

static_assert(sm90::kMaxMaps >= (2 + sm90::kMaxSends) * sm90::kMaxPieces,
              "each piece has maps of A, of B and of its receivers");

class ProductWork {
 public:
  ProductWork(const CudaPrepared& prepared, const LaunchUnit& unit, const Operands& operands)
      : prepared_(prepared), launch_(*unit.product), operands_(operands) {}

  absl::Status Build(uint64_t epoch, const LaunchWords& words, sm90::TileTrace* trace) {
    arguments_->raster_rows = launch_.config.raster_rows;
    arguments_->send_columns = launch_.config.send_columns;
    arguments_->epoch = epoch;
    arguments_->abort = words.abort();
    arguments_->trace = trace;
    for (const ProductBlock& block : launch_.blocks) AGMM_RETURN_IF_ERROR(Add(block));
    return sm90::CheckArguments(*arguments_, launch_.config);
  }
  const sm90::Arguments& arguments() const { return *arguments_; }

 private:
  const CudaMultiply& MultiplyOf(const ProductPiece& piece) const {
    return std::get<CudaMultiply>(prepared_.program().steps[piece.step].op);
  }
  CUdeviceptr AddressOf(const HeapPlace& place) const {
    return prepared_.heap(place.rank) + place.RowOffset(operands_, 0);
  }

  absl::Status Add(const ProductBlock& from) {
    sm90::Block& block = arguments_->blocks[arguments_->block_count++];
    const CudaMultiply& last = MultiplyOf(launch_.pieces[from.first_piece + from.pieces - 1]);
    block.rows = static_cast<int>(last.rows);
    block.cols = static_cast<int>(last.n);
    block.first_piece = from.first_piece;
    block.pieces = from.pieces;
    block.c = reinterpret_cast<void*>(AddressOf(last.out));
    block.pitch = last.out.pitch_bytes / SizeOf(last.out.dtype);
    const sm90::TileOrder order(block, launch_.config.tile_cols, launch_.config.raster_rows,
                                launch_.config.cluster);
    const bool sends = std::any_of(launch_.pieces.begin() + from.first_piece,
                                   launch_.pieces.begin() + from.first_piece + from.pieces,
                                   [](const ProductPiece& piece) { return !piece.sends.empty(); });
    const int cluster = launch_.config.cluster;
    const int contributors =
        sends ? cluster * sm90::ContributorsOf(order, launch_.config.ctas / cluster,
                                               launch_.config.send_columns)
              : 0;
    for (int i = 0; i < from.pieces; ++i) {
      const int number = from.first_piece + i;
      AGMM_RETURN_IF_ERROR(Add(launch_.pieces[number], contributors, &arguments_->pieces[number]));
    }
    return absl::OkStatus();
  }

  absl::Status Add(const ProductPiece& from, int contributors, sm90::Piece* piece) {
    const CudaMultiply& multiply = MultiplyOf(from);
    piece->k = static_cast<int>(multiply.k);
    AGMM_ASSIGN_OR_RETURN(piece->a, MapOf(multiply.a, multiply.rows, multiply.k, sm90::kTileRows));
    AGMM_ASSIGN_OR_RETURN(piece->b,
                          MapOf(multiply.b, multiply.k, multiply.n,
                                sm90::kStageBytesOfK / static_cast<int>(SizeOf(multiply.b.dtype))));
    if (from.slots.size() > std::size(piece->waits))
      return absl::InternalError(absl::StrCat("a piece waits for ", from.slots.size(),
                                              " slots; its kernel has ", sm90::kMaxWaits));
    for (size_t i = 0; i < from.slots.size(); ++i) {
      piece->waits[i] =
          reinterpret_cast<const uint64_t*>(prepared_.slot_memory().slot(from.slots[i]));
    }
    for (size_t i = 0; i < from.sends.size(); ++i) {
      AGMM_RETURN_IF_ERROR(Add(from.sends[i], multiply, contributors, &piece->sends[i]));
    }
    return absl::OkStatus();
  }

  absl::Status Add(int step, const CudaMultiply& multiply, int contributors, sm90::Send* send) {
    const CudaStep& transfer = prepared_.program().steps[step];
    const Signalled& signal = transfer.signals[0];
    AGMM_ASSIGN_OR_RETURN(const sm90::View to, MapOf(transfer.copy()->to[0], multiply.rows,
                                                     multiply.k, sm90::kTileRows));
    send->map = to.map;
    send->x = to.x;
    send->contributors = contributors;
    send->counter = reinterpret_cast<uint32_t*>(prepared_.counter(step));
    send->slot = reinterpret_cast<uint64_t*>(
        static_cast<EventExecutor*>(signal.executor)->PolledSlot(signal.slot));
    return absl::OkStatus();
  }

  // Returns a view of a place, with the map of an equal one if there is any.
  absl::StatusOr<sm90::View> MapOf(const HeapPlace& place, int64_t rows, int64_t cols,
                                   int box_rows) {
    const MatrixAt matrix = {AddressOf(place), rows, cols, place.pitch_bytes, place.dtype};
    for (const Mapped& mapped : mapped_) {
      if (mapped.matrix == matrix && mapped.box_rows == box_rows) return mapped.view;
    }
    sm90::View view;
    view.map = static_cast<int>(mapped_.size());
    Gpu& gpu = prepared_.gpu();
    AGMM_RETURN_IF_ERROR(
        gpu.Check(gpu.products()->Map(matrix, box_rows, &arguments_->maps[view.map], &view),
                  "cuTensorMapEncodeTiled"));
    mapped_.push_back({matrix, box_rows, view});
    return view;
  }

  struct Mapped {
    MatrixAt matrix;
    int box_rows = 0;
    sm90::View view;
  };

  const CudaPrepared& prepared_;
  const ProductLaunch& launch_;
  const Operands& operands_;
  const std::unique_ptr<sm90::Arguments> arguments_ = std::make_unique<sm90::Arguments>();
  std::vector<Mapped> mapped_;
};

}  // namespace

absl::Status PutProducts(const CudaPrepared& prepared, const LaunchUnit& unit, uint64_t epoch,
                         const Operands& operands, const LaunchWords& words,
                         sm90::TileTrace* trace) {
  if (trace != nullptr) std::fill_n(trace, unit.product->tiles, sm90::TileTrace{});
  ProductWork work(prepared, unit, operands);
  AGMM_RETURN_IF_ERROR(work.Build(epoch, words, trace));
  Gpu& gpu = prepared.gpu();
  return gpu.Check(
      gpu.products()->Launch(unit.product->config, work.arguments(), prepared.stream(unit.lane)),
      "cuLaunchKernel");
}

std::vector<BlockTime> BlockTimes(const ProductLaunch& launch, const sm90::TileTrace* trace) {
  const auto read = [](const uint64_t& word) {
    return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_relaxed);
  };
  std::vector<BlockTime> times;
  for (const ProductBlock& block : launch.blocks) {
    BlockTime& time = times.emplace_back();
    bool ended = true;
    for (int tile = block.first_tile; tile < block.first_tile + block.tiles; ++tile) {
      const uint64_t start = read(trace[tile].start_ns);
      if (start > 0) time.start_ns = time.start_ns == 0 ? start : std::min(time.start_ns, start);
      time.waits = time.waits || (start > 0 && read(trace[tile].waited_ns) == 0);
      for (const uint64_t& consumer : trace[tile].end_ns) {
        time.end_ns = std::max(time.end_ns, read(consumer));
        ended = ended && read(consumer) > 0;
      }
    }
    if (!ended) time.end_ns = 0;
  }
  return times;
}

}  // namespace agmm
