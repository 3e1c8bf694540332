#include "kernels/device/gemm_config.h"

#include <algorithm>

#include "kernels/base/units.h"

namespace agmm {
namespace {

// A single worker tends to the transport between pieces (progress_engine.h): messages wait for as
// long as a core takes for so much, about half a millisecond with AMX. But no less than kLeastRows,
// whatever that takes: B passes through the caches once a piece.
constexpr double kPieceFlops = 5e8;
constexpr int64_t kLeastRows = 128;

}  // namespace

GemmConfig ChooseGemmConfig(int64_t rows, int64_t n, int64_t k, DType dtype, int threads) {
  GemmConfig config;
  config.threads = threads;
  // With B packed, pieces of 64 to 512 rows run at nearly the same rate, larger ones a little
  // better (kernels/cpu/NOTES.md); 128 leaves every worker something to do at the end of a chunk.
  int64_t most = 128;
  if (threads == 1) {
    most = 256;
    while (most > kLeastRows && 2.0 * static_cast<double>(most) * n * k > kPieceFlops) most /= 2;
  }
  config.piece_rows = std::clamp<int64_t>(RoundUp(CeilDiv(rows, threads), 16), 16, most);
  return config;
}

}  // namespace agmm
