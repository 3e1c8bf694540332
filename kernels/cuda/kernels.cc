#include "kernels/cuda/kernels.h"

#include <algorithm>

#include "kernels/base/units.h"

// The fat binary that nvcc made of elementwise.cu, in this object file.
asm(".pushsection .rodata\n"
    ".balign 64\n"
    ".globl agmm_elementwise_fatbin\n"
    "agmm_elementwise_fatbin:\n"
    ".incbin \"" AGMM_ELEMENTWISE_FATBIN
    "\"\n"
    ".popsection\n");
extern "C" const char agmm_elementwise_fatbin[];

namespace agmm {
namespace {

constexpr int64_t kThreads = 256;
// Blocks across and down; threads go on from there in strides.
constexpr int64_t kMostAcross = 256, kMostDown = 8192;

}  // namespace

void Kernels::Unload() {
  if (library_ != nullptr) driver_.cuLibraryUnload(library_);
  library_ = nullptr;
}

CUresult Kernels::Load() {
  CUresult result = driver_.cuLibraryLoadData(&library_, agmm_elementwise_fatbin, nullptr, nullptr,
                                              0, nullptr, nullptr, 0);
  const auto get = [&](const char* name, CUfunction* function) {
    CUkernel kernel = nullptr;
    if (result == CUDA_SUCCESS) result = driver_.cuLibraryGetKernel(&kernel, library_, name);
    if (result == CUDA_SUCCESS) result = driver_.cuKernelGetFunction(function, kernel);
  };
  get("agmm_convert", &convert_);
  get("agmm_reduce", &reduce_);
  get("agmm_fill", &fill_);
  return result;
}

CUresult Kernels::Launch(const elementwise::Convert& work, CUstream stream) const {
  return LaunchOn(convert_, work, stream);
}
CUresult Kernels::Launch(const elementwise::Reduce& work, CUstream stream) const {
  return LaunchOn(reduce_, work, stream);
}
CUresult Kernels::Launch(const elementwise::Fill& work, CUstream stream) const {
  return LaunchOn(fill_, work, stream);
}

template <typename Work>
CUresult Kernels::LaunchOn(CUfunction function, const Work& work, CUstream stream) const {
  if (work.rows == 0 || work.cols == 0) return CUDA_SUCCESS;
  const auto across = static_cast<unsigned>(std::min(CeilDiv(work.cols, kThreads), kMostAcross));
  const auto down = static_cast<unsigned>(std::min(work.rows, kMostDown));
  void* parameters[] = {const_cast<Work*>(&work)};
  return driver_.cuLaunchKernel(function, across, down, 1, kThreads, 1, 1, 0, stream, parameters,
                                nullptr);
}

}  // namespace agmm
