#include "kernels/cuda/product_kernels.h"

#include <algorithm>

// The fat binary that nvcc made of product.cu, in this object file.
asm(".pushsection .rodata\n"
    ".balign 64\n"
    ".globl agmm_product_fatbin\n"
    "agmm_product_fatbin:\n"
    ".incbin \"" AGMM_PRODUCT_FATBIN
    "\"\n"
    ".popsection\n");
extern "C" const char agmm_product_fatbin[];

namespace agmm {
namespace {

// TMA takes addresses that are multiples of this.
constexpr int kMapAlignBytes = 16;

}  // namespace

CUresult ProductKernels::Load() {
  CUresult result = driver_.cuLibraryLoadData(&library_, agmm_product_fatbin, nullptr, nullptr, 0,
                                              nullptr, nullptr, 0);
  for (const sm90::ProductConfig& config : sm90::AllProducts()) {
    CUkernel kernel = nullptr;
    CUfunction& function = functions_[config.kernel];
    if (result == CUDA_SUCCESS)
      result = driver_.cuLibraryGetKernel(&kernel, library_, config.kernel.c_str());
    if (result == CUDA_SUCCESS) result = driver_.cuKernelGetFunction(&function, kernel);
    if (result == CUDA_SUCCESS) {
      result = driver_.cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                          config.shared_bytes);
    }
    if (result == CUDA_SUCCESS && config.cluster > 1) {
      int clusters = 0;
      result = CountClusters(config, function, &clusters);
      most_clusters_ = std::min(most_clusters_, clusters);
    }
  }
  return result;
}

CUresult ProductKernels::CountClusters(const sm90::ProductConfig& config, CUfunction function,
                                       int* clusters) const {
  // The kernel itself has the cluster.
  CUlaunchConfig launch = {};
  launch.gridDimX = config.cluster;
  launch.blockDimX = sm90::kThreads;
  launch.gridDimY = launch.gridDimZ = launch.blockDimY = launch.blockDimZ = 1;
  launch.sharedMemBytes = config.shared_bytes;
  return driver_.cuOccupancyMaxActiveClusters(clusters, function, &launch);
}

void ProductKernels::Unload() {
  if (library_ != nullptr) driver_.cuLibraryUnload(library_);
  library_ = nullptr;
}

CUresult ProductKernels::Map(const MatrixAt& matrix, int box_rows, CUtensorMap* map,
                             sm90::View* view) const {
  const int64_t element = SizeOf(matrix.dtype);
  const int64_t before = static_cast<int64_t>(matrix.address % kMapAlignBytes);
  view->x = static_cast<int>(before / element);
  const cuuint64_t dims[] = {static_cast<cuuint64_t>(view->x + matrix.cols),
                             static_cast<cuuint64_t>(matrix.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(matrix.pitch_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(sm90::kStageBytesOfK / element),
                            static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[] = {1, 1};
  return driver_.cuTensorMapEncodeTiled(
      map,
      matrix.dtype == DType::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                  : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
      2, reinterpret_cast<void*>(matrix.address - before), dims, strides, box, steps,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

CUresult ProductKernels::Launch(const sm90::ProductConfig& config, const sm90::Arguments& arguments,
                                CUstream stream) const {
  void* parameters[] = {const_cast<sm90::Arguments*>(&arguments)};
  return driver_.cuLaunchKernel(functions_.at(config.kernel), config.ctas, 1, 1, sm90::kThreads, 1,
                                1, config.shared_bytes, stream, parameters, nullptr);
}

}  // namespace agmm
