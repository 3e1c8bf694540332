#include "kernels/cuda/sm90/product_config.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/units.h"
#include "kernels/cuda/sm90/product_arguments.h"

namespace agmm::sm90 {
namespace {

constexpr int kNarrow = 128, kWide = 256;          // columns of a tile
constexpr int kNarrowStages = 6, kWideStages = 4;  // as many as fit into 227 KiB
constexpr int kRasterRows = 16, kSendColumns = 4;  // not measured; see NOTES.md

std::string NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
  }
  return "";
}

// Rounds of tiles on all SMs, in units of a narrow tile.
int64_t Rounds(const ProductProblem& problem, int tile_cols) {
  const int64_t tiles = problem.tiles_rows / kTileRows * CeilDiv(problem.cols, tile_cols);
  return CeilDiv(tiles, problem.sms) * (tile_cols / kNarrow);
}

}  // namespace

ProductConfig ProductKernel(const std::string& in, const std::string& out, int tile_cols,
                            bool sends) {
  ProductConfig config;
  config.kernel =
      absl::StrCat(sends ? "agmm_ring_" : "agmm_product_", in, "_", out, "_", tile_cols);
  config.tile_cols = tile_cols;
  config.stages = tile_cols == kNarrow ? kNarrowStages : kWideStages;
  // Stages begin at multiples of 1,024 bytes, which costs up to as many; each has two mbarriers.
  config.shared_bytes = 1024 + config.stages * ((kTileRows + tile_cols) * kStageBytesOfK + 16);
  config.raster_rows = kRasterRows;
  config.send_columns = kSendColumns;
  return config;
}

absl::StatusOr<ProductConfig> ChooseProduct(const ProductProblem& problem) {
  if (problem.in == DType::kF32) {
    return absl::UnimplementedError("products of f32 are computed by cuBLASLt");
  }
  if (problem.out != problem.in && problem.out != DType::kF32) {
    return absl::UnimplementedError(absl::StrCat("products of ", NameOf(problem.in),
                                                 " with results of ", NameOf(problem.out),
                                                 " are computed by cuBLASLt"));
  }
  if (problem.rows <= kTileRows / 2) {
    return absl::UnimplementedError(absl::StrCat("products with ", problem.rows, " rows, at most ",
                                                 kTileRows / 2, ", are computed by cuBLASLt"));
  }
  // Wide tiles read shared memory less often. Results of f32 have narrow ones only.
  const bool wide = problem.out == problem.in && Rounds(problem, kWide) <= Rounds(problem, kNarrow);
  ProductConfig config =
      ProductKernel(NameOf(problem.in), NameOf(problem.out), wide ? kWide : kNarrow, problem.sends);
  const int64_t tiles = problem.tiles_rows / kTileRows * CeilDiv(problem.cols, config.tile_cols);
  config.ctas = static_cast<int>(std::min<int64_t>(tiles, problem.sms));
  return config;
}

}  // namespace agmm::sm90
