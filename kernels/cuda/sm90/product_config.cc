#include "kernels/cuda/sm90/product_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/units.h"
#include "kernels/cuda/sm90/product_arguments.h"

namespace agmm::sm90 {
namespace {

constexpr int kRasterRows = 16, kSendColumns = 4;  // not measured; see NOTES.md

std::string NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
  }
  return "";
}

int64_t TilesOf(const ProductProblem& problem, int tile_cols) {
  return problem.tiles_rows / kTileRows * CeilDiv(problem.cols, tile_cols);
}

// Rounds of tiles on all SMs, in units of a narrow tile.
int64_t Rounds(const ProductProblem& problem, int tile_cols) {
  return CeilDiv(TilesOf(problem, tile_cols), problem.sms) * (tile_cols / kNarrow);
}

// True if clusters compute wide tiles in as few rounds as single CTAs, because they load a third
// less. With an odd number of rows of tiles in a block, they would compute tiles that lie below it.
bool TakesClusters(const ProductProblem& problem) {
  if (problem.clusters < 1) return false;
  return AGMM_FAILPOINT("products.clusters") ||
         (problem.even && CeilDiv(TilesOf(problem, kWide) / kPair, problem.clusters) <=
                              CeilDiv(TilesOf(problem, kWide), problem.sms));
}

}  // namespace

ProductConfig ProductKernel(const std::string& in, const std::string& out, int tile_cols,
                            bool sends, int cluster) {
  ProductConfig config;
  config.kernel =
      absl::StrCat(sends ? "agmm_ring_" : "agmm_product_", in, "_", out, "_", tile_cols);
  if (cluster > 1) absl::StrAppend(&config.kernel, "_", cluster);
  config.tile_cols = tile_cols;
  config.cluster = cluster;
  config.stages = tile_cols == kNarrow ? kNarrowStages : kWideStages;
  // Stages begin at multiples of 1,024 bytes, which costs up to as many; each has two mbarriers.
  // Words say that the launch is aborted, and what the leader of a cluster grants.
  config.shared_bytes = 1024 + config.stages * ((kTileRows + tile_cols) * kStageBytesOfK + 16) + 16;
  config.raster_rows = kRasterRows / cluster;
  config.send_columns = kSendColumns;
  return config;
}

std::vector<ProductConfig> AllProducts() {
  std::vector<ProductConfig> all;
  for (const char* in : {"f16", "bf16"}) {
    for (const bool sends : {false, true}) {
      all.push_back(ProductKernel(in, in, kNarrow, sends));
      all.push_back(ProductKernel(in, in, kWide, sends));
      all.push_back(ProductKernel(in, in, kWide, sends, kPair));
      all.push_back(ProductKernel(in, "f32", kNarrow, sends));
    }
  }
  return all;
}

absl::Status CheckArguments(const Arguments& arguments, const ProductConfig& config) {
  const auto wrong = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (arguments.block_count < 1 || arguments.block_count > kMaxBlocks) {
    return wrong(arguments.block_count, " blocks; a launch has 1 to ", kMaxBlocks);
  }
  if (config.ctas % config.cluster != 0) {
    return wrong("a grid of ", config.ctas, " CTAs in clusters of ", config.cluster);
  }
  if (arguments.send_columns < 1 || arguments.raster_rows < 1) {
    return wrong(arguments.send_columns, " columns that send, ", arguments.raster_rows,
                 " raster rows; both are at least 1");
  }
  const auto is_map = [](int map) { return map >= 0 && map < kMaxMaps; };
  for (int number = 0; number < arguments.block_count; ++number) {
    const Block& block = arguments.blocks[number];
    if (block.rows < 1 || block.cols < 1 || block.pieces < 1 || block.first_piece < 0 ||
        block.first_piece + block.pieces > kMaxPieces) {
      return wrong("block ", number, " has ", block.rows, " rows, ", block.cols, " columns and ",
                   block.pieces, " pieces from ", block.first_piece,
                   "; each is at least 1, and there are ", kMaxPieces, " pieces");
    }
    bool sends = false, waits_inside = false;
    for (int i = 0; i < block.pieces; ++i) {
      const Piece& piece = arguments.pieces[block.first_piece + i];
      if (piece.k < 1 || !is_map(piece.a.map) || !is_map(piece.b.map)) {
        return wrong("piece ", block.first_piece + i, " has k = ", piece.k, " and maps ",
                     piece.a.map, " and ", piece.b.map, "; k is at least 1, and maps are below ",
                     kMaxMaps);
      }
      for (const Send& send : piece.sends) {
        if (send.map >= 0 && !is_map(send.map)) {
          return wrong("piece ", block.first_piece + i, " is sent by map ", send.map,
                       "; maps are below ", kMaxMaps);
        }
        sends = sends || send.map >= 0;
      }
      waits_inside = waits_inside || (i > 0 && piece.has_waits());
    }
    const TileOrder order(block, config.tile_cols, arguments.raster_rows, config.cluster);
    if (sends && waits_inside &&
        !SendsInItsFirstRound(order, config.ctas / config.cluster, arguments.send_columns)) {
      return wrong(
          "block ", number,
          " waits for parts of K and sends some, and a tile that sends is not among the first ",
          config.ctas, "; use fewer columns that send, or copies");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ProductConfig> ChooseProduct(const ProductProblem& problem) {
  if (problem.rows < 1 || problem.cols < 1 || problem.sms < 1) {
    return absl::InvalidArgumentError(absl::StrCat("a product of ", problem.rows, " rows and ",
                                                   problem.cols, " columns on ", problem.sms,
                                                   " SMs; each is at least 1"));
  }
  if (problem.in == DType::kF32) {
    return absl::UnimplementedError("products of f32");
  }
  if (problem.out != problem.in && problem.out != DType::kF32) {
    return absl::UnimplementedError(
        absl::StrCat("products of ", NameOf(problem.in), " with results of ", NameOf(problem.out)));
  }
  if (problem.rows <= kTileRows / 2 && !AGMM_FAILPOINT("products.few_rows")) {
    return absl::UnimplementedError(absl::StrCat("products of at most ", kTileRows / 2, " rows"));
  }
  // Wide tiles read shared memory less often. Results of f32 have narrow ones only.
  const bool wide =
      problem.out == problem.in &&
      (Rounds(problem, kWide) <= Rounds(problem, kNarrow) || AGMM_FAILPOINT("products.clusters"));
  const int cluster = wide && TakesClusters(problem) ? kPair : 1;
  ProductConfig config = ProductKernel(NameOf(problem.in), NameOf(problem.out),
                                       wide ? kWide : kNarrow, problem.sends, cluster);
  const int64_t most = cluster > 1 ? int64_t{cluster} * problem.clusters : problem.sms;
  config.ctas = static_cast<int>(
      std::min(RoundUp(TilesOf(problem, config.tile_cols), int64_t{cluster}), most));
  return config;
}

}  // namespace agmm::sm90
