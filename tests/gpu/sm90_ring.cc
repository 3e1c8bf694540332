#include "tests/gpu/sm90_ring.h"

#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/units.h"

namespace agmm::sm90 {
namespace {

// A copy within one GPU may be a kernel, so kernels that wait for copies leave it some SMs.
constexpr int kSmsForCopies = 4;
// The longest delay writes this much: some 10 us on a GPU. On a model, each piece is a delay.
constexpr int64_t kMostDelayBytes = 32 << 20, kMostModelDelayBytes = 1 << 12;

// The place of a piece's sending.
Send& SendOf(Piece& piece) { return piece.sends[0]; }

uint64_t* Word(CUdeviceptr words, int number) {
  return reinterpret_cast<uint64_t*>(words) + number;
}

}  // namespace

LoopbackRing::LoopbackRing(HopperGpu& gpu, const Shape& shape) : gpu_(gpu), shape_(shape) {
  carries_ = Choose(true, gpu.sms() / shape.ranks);
  waits_ = Choose(false, (gpu.sms() - kSmsForCopies) / shape.ranks);
  const int64_t m = shape.ranks * shape.rows;
  constexpr int kWordBytes = kMaxPieces * sizeof(uint64_t);
  for (int number = 0; number < shape.ranks; ++number) {
    Rank& rank = ranks_.emplace_back();
    rank.a = gpu.Make(m, shape.k, shape.dtype, shape.offset);
    rank.b = gpu.Make(shape.k, shape.cols, shape.dtype, shape.offset);
    rank.c = gpu.Make(m, shape.cols, shape.dtype, shape.offset);
    rank.slots = gpu.Device(kWordBytes);
    rank.counters = gpu.Device(kWordBytes);
    rank.delays = gpu.Device(gpu.is_model() ? kMostModelDelayBytes : kMostDelayBytes);
    for (CUevent* event : {&rank.ready, &rank.multiplied, &rank.copied}) {
      *event = gpu.Event(0, CU_EVENT_DISABLE_TIMING);
    }
    for (const CUdeviceptr words : {rank.slots, rank.counters}) {
      gpu.Check("cuMemsetD8Async",
                gpu.cu.cuMemsetD8Async(words, 0, kWordBytes, gpu.products(number)));
    }
  }
  whole_a_ = gpu.Make(m, shape.k, shape.dtype, shape.offset);
  wanted_ = gpu.Make(m, shape.cols, shape.dtype, shape.offset);
  begin_ = gpu.Event();
  end_ = gpu.Event();
  epoch_word_ = gpu.Host<uint64_t>(1);
}

ProductConfig LoopbackRing::Choose(bool sends, int sms) const {
  const auto config = ChooseProduct({.in = shape_.dtype,
                                     .out = shape_.dtype,
                                     .rows = shape_.rows,
                                     .cols = shape_.cols,
                                     .tiles_rows = shape_.ranks * RoundUp(shape_.rows, kTileRows),
                                     .sends = sends,
                                     .sms = sms});
  if (!config.ok()) Die(config.status().ToString());
  return *config;
}

void LoopbackRing::Refill(FillKind kind, uint64_t seed) {
  for (int number = 0; number < shape_.ranks; ++number) {
    Rank& rank = ranks_[number];
    const CUstream stream = gpu_.products(number);
    const int64_t first = number * shape_.rows, end = first + shape_.rows;
    gpu_.Poison(rank.a.Rows(0, first), stream);
    gpu_.Poison(rank.a.Rows(end, rank.a.rows - end), stream);
    gpu_.Poison(rank.c, stream);
    gpu_.Fill(Chunk(rank, number), kind, seed, first * shape_.k, stream);
    gpu_.Fill(rank.b, kind, seed + 1 + number, 0, stream);
  }
  gpu_.Fill(whole_a_, kind, seed, 0, gpu_.control());
}

void LoopbackRing::Begin() {
  *epoch_word_ = ++epoch_;
  for (int rank = 0; rank < shape_.ranks; ++rank)
    gpu_.Order(gpu_.products(rank), ranks_[rank].ready, gpu_.control());
  gpu_.HoldBack();
  gpu_.Check("cuEventRecord", gpu_.cu.cuEventRecord(begin_, gpu_.control()));
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    for (const CUstream stream : {gpu_.products(rank), gpu_.copies(rank)})
      gpu_.Check("cuStreamWaitEvent", gpu_.cu.cuStreamWaitEvent(stream, begin_, 0));
  }
}

void LoopbackRing::End(const std::string& work) {
  for (int rank = 0; rank < shape_.ranks; ++rank) {
    gpu_.Order(gpu_.products(rank), ranks_[rank].multiplied, gpu_.control());
    gpu_.Order(gpu_.copies(rank), ranks_[rank].copied, gpu_.control());
  }
  gpu_.Check("cuEventRecord", gpu_.cu.cuEventRecord(end_, gpu_.control()));
  gpu_.Await(end_, work);
}

double LoopbackRing::Run(Send send, uint64_t delay_seed) {
  Begin();
  // A kernel is launched after the copies that it waits for.
  for (int rank = 0; send == Send::kCopies && rank < shape_.ranks; ++rank) Copy(rank);
  std::vector<int> order(shape_.ranks);
  std::iota(order.begin(), order.end(), 0);
  for (int i = shape_.ranks; delay_seed != 0 && i > 0; --i) {
    delay_seed = MixFill(delay_seed + i);
    std::swap(order[i - 1], order[delay_seed % i]);
    Delay(order[i - 1], delay_seed >> 32);
  }
  for (const int rank : order) Launch(rank, send);
  End(absl::StrCat("epoch ", epoch_, " of ", shape_.ranks, " ranks, ",
                   send == Send::kCarried ? "carried" : "copied"));
  return gpu_.Microseconds(begin_, end_);
}

void LoopbackRing::RunAborted() {
  Begin();
  Launch(0, Send::kCarried);
  gpu_.Check("cuEventRecord", gpu_.cu.cuEventRecord(ranks_[0].multiplied, gpu_.products(0)));
  if (gpu_.cu.cuEventQuery(ranks_[0].multiplied) == CUDA_SUCCESS)
    Die("a kernel ended without the chunks for which it waits");
  gpu_.SetAbort(true);
  End(absl::StrCat("an aborted kernel, one of ", shape_.ranks));
  gpu_.SetAbort(false);
}

void LoopbackRing::Delay(int rank, uint64_t random) {
  const int64_t most = gpu_.is_model() ? kMostModelDelayBytes : kMostDelayBytes;
  gpu_.Check("cuMemsetD8Async", gpu_.cu.cuMemsetD8Async(ranks_[rank].delays, 0, 1 + random % most,
                                                        gpu_.products(rank)));
}

void LoopbackRing::Copy(int number) {
  const CUstream stream = gpu_.copies(number);
  for (int step = 1; step < shape_.ranks; ++step) {
    const int chunk = ChunkAt(number, step);
    const DeviceMatrix to = Chunk(ranks_[number], chunk), from = Chunk(ranks_[chunk], chunk);
    gpu_.Check("cuMemcpyDtoDAsync", gpu_.cu.cuMemcpyDtoDAsync(to.at, from.at, to.bytes(), stream));
    gpu_.Check(
        "cuMemcpyHtoDAsync",
        gpu_.cu.cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(Word(ranks_[number].slots, chunk)),
                                  epoch_word_, sizeof *epoch_word_, stream));
  }
}

void LoopbackRing::Launch(int number, Send send) {
  const ProductConfig& config = this->config(send);
  const Rank& rank = ranks_[number];
  const int next_number = (number + 1) % shape_.ranks;
  const Rank& next = ranks_[next_number];
  auto arguments = std::make_unique<Arguments>();
  int maps = 0;
  const auto add = [&](const DeviceMatrix& matrix, int box_rows) {
    return gpu_.Map(matrix, box_rows, *arguments, maps++);
  };
  const int depth = static_cast<int>(kStageBytesOfK / SizeOf(shape_.dtype));
  const View b = add(rank.b, depth);
  for (int step = 0; step < shape_.ranks; ++step) {
    const int chunk = ChunkAt(number, step);
    const DeviceMatrix c = rank.c.Rows(chunk * shape_.rows, shape_.rows);
    Block& block = arguments->blocks[step];
    block = {.rows = static_cast<int>(c.rows),
             .cols = static_cast<int>(c.cols),
             .first_piece = step,
             .pieces = 1,
             .c = reinterpret_cast<void*>(c.at),
             .pitch = c.pitch_bytes / SizeOf(shape_.dtype)};
    Piece& piece = arguments->pieces[step];
    piece.a = add(Chunk(rank, chunk), kTileRows);
    piece.b = b;
    piece.k = static_cast<int>(shape_.k);
    if (step > 0) piece.waits[0] = Word(rank.slots, chunk);
    const TileOrder order(block, config.tile_cols, config.raster_rows);
    if (send == Send::kCarried && step + 1 < shape_.ranks) {
      const View to = add(Chunk(next, chunk), kTileRows);
      SendOf(piece) = {.map = to.map,
                       .x = to.x,
                       .contributors = ContributorsOf(order, config.ctas, config.send_columns),
                       .counter = reinterpret_cast<uint32_t*>(Word(rank.counters, chunk)),
                       .slot = Word(next.slots, chunk)};
    }
  }
  arguments->block_count = shape_.ranks;
  arguments->raster_rows = config.raster_rows;
  arguments->send_columns = config.send_columns;
  arguments->epoch = epoch_;
  arguments->abort = gpu_.abort();
  gpu_.Launch(config, *arguments, gpu_.products(number));
}

int64_t LoopbackRing::CountWrongRows() {
  int64_t wrong = 0;
  for (const Rank& rank : ranks_) {
    gpu_.Multiply(whole_a_, rank.b, wanted_, gpu_.control());
    wrong += gpu_.CountDifferentRows(rank.c, wanted_);
  }
  return wrong;
}

}  // namespace agmm::sm90
