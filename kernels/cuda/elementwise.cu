// The kernels around the bodies of elementwise.h. The threads of a block work along a row.
#include "kernels/cuda/elementwise.h"

namespace agmm::elementwise {
namespace {

template <typename Work>
__device__ void ForEach(const Work& work) {
  for (int64_t row = blockIdx.y; row < work.rows; row += gridDim.y) {
    for (int64_t col = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; col < work.cols;
         col += int64_t{gridDim.x} * blockDim.x)
      Element(work, row, col);
  }
}

}  // namespace

extern "C" __global__ void agmm_convert(const Convert work) { ForEach(work); }
extern "C" __global__ void agmm_reduce(const Reduce work) { ForEach(work); }
extern "C" __global__ void agmm_fill(const Fill work) { ForEach(work); }

}  // namespace agmm::elementwise
