// How a multiply is computed on a device. What is computed is the schedule's business.
#pragma once

#include <cstdint>

#include "kernels/base/dtype.h"

namespace agmm {

struct GemmConfig {
  int threads = 1;           // workers that share one multiply
  int64_t piece_rows = 128;  // rows one worker takes at a time
  bool operator==(const GemmConfig&) const = default;
};

// The one place where a shape (rows, n, k elements) chooses its configuration.
GemmConfig ChooseGemmConfig(int64_t rows, int64_t n, int64_t k, DType dtype, int threads);

}  // namespace agmm
