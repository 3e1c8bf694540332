// Copies of rows between memory of GPUs and pinned memory of the host.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/gpu.h"

namespace agmm {

// One end of a copy: an address of a GPU, or of pinned memory if `host` is set.
struct RowsEnd {
  CUdeviceptr device = 0;
  std::byte* host = nullptr;
  int64_t pitch_bytes = 0;
};

// Queues the copy of `rows` rows of `row_bytes` on a stream of `gpu`, whose context must be
// current.
absl::Status CopyRowsOn(Gpu& gpu, const RowsEnd& from, const RowsEnd& to, int64_t rows,
                        int64_t row_bytes, CUstream stream);

}  // namespace agmm
