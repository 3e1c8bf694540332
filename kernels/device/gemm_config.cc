#include "kernels/device/gemm_config.h"

#include <algorithm>

#include "kernels/base/units.h"

namespace agmm {

GemmConfig ChooseGemmConfig(int64_t rows, int64_t n, int64_t k, DType dtype, int threads) {
  GemmConfig config;
  config.threads = threads;
  // With B packed, pieces of 64 to 512 rows run at nearly the same rate, larger ones a little better
  // (kernels/cpu/NOTES.md); 128 leaves every worker something to do at the end of a chunk.
  config.piece_rows = std::clamp<int64_t>(RoundUp(CeilDiv(rows, threads), 16), 16, threads == 1 ? 256 : 128);
  return config;
}

}  // namespace agmm
