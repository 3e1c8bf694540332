// The CUDA driver, opened at run time, so that one build runs with and without it, and nothing
// links to it.
#pragma once

#include <cuda.h>

#include <string>

#include "absl/status/statusor.h"

// The driver's functions that this device calls, by the names that cuGetProcAddress knows. cuda.h
// maps each to the version whose declaration it has.
#define AGMM_DRIVER_FUNCTIONS(X)   \
  X(cuInit)                        \
  X(cuDriverGetVersion)            \
  X(cuGetErrorName)                \
  X(cuGetErrorString)              \
  X(cuDeviceGetCount)              \
  X(cuDeviceGet)                   \
  X(cuDeviceGetName)               \
  X(cuDeviceGetUuid)               \
  X(cuDeviceTotalMem)              \
  X(cuDeviceGetAttribute)          \
  X(cuDeviceCanAccessPeer)         \
  X(cuDevicePrimaryCtxRetain)      \
  X(cuDevicePrimaryCtxRelease)     \
  X(cuCtxPushCurrent)              \
  X(cuCtxPopCurrent)               \
  X(cuCtxGetStreamPriorityRange)   \
  X(cuMemGetInfo)                  \
  X(cuMemGetAllocationGranularity) \
  X(cuMemAddressReserve)           \
  X(cuMemAddressFree)              \
  X(cuMemCreate)                   \
  X(cuMemRelease)                  \
  X(cuMemMap)                      \
  X(cuMemUnmap)                    \
  X(cuMemSetAccess)                \
  X(cuMemAlloc)                    \
  X(cuMemFree)                     \
  X(cuMemHostAlloc)                \
  X(cuMemFreeHost)                 \
  X(cuStreamCreateWithPriority)    \
  X(cuStreamDestroy)               \
  X(cuStreamWaitEvent)             \
  X(cuEventCreate)                 \
  X(cuEventDestroy)                \
  X(cuEventRecord)                 \
  X(cuEventQuery)                  \
  X(cuEventElapsedTime)            \
  X(cuMemcpyHtoDAsync)             \
  X(cuMemcpyDtoHAsync)             \
  X(cuMemcpyDtoDAsync)             \
  X(cuMemcpy2DAsync)               \
  X(cuMemsetD8Async)               \
  X(cuTensorMapEncodeTiled)        \
  X(cuLibraryLoadData)             \
  X(cuLibraryUnload)               \
  X(cuLibraryGetKernel)            \
  X(cuKernelGetFunction)           \
  X(cuFuncSetAttribute)            \
  X(cuOccupancyMaxActiveClusters)  \
  X(cuLaunchKernel)

namespace agmm {

// The table of functions. Lives as long as the process.
struct Driver {
#define AGMM_MEMBER(name) decltype(&::name) name = nullptr;
  AGMM_DRIVER_FUNCTIONS(AGMM_MEMBER)
#undef AGMM_MEMBER
  int version = 0;  // of CUDA, as returned by cuDriverGetVersion: 13000

  // "CUDA_ERROR_OUT_OF_MEMORY: out of memory".
  std::string Describe(CUresult result) const;
};

// Makes a context current on this thread during its lifetime.
class InContext {
 public:
  InContext(const Driver& driver, CUcontext context)
      : driver_(driver), pushed_(driver.cuCtxPushCurrent(context)) {}
  ~InContext() {
    CUcontext context;
    if (pushed_ == CUDA_SUCCESS) driver_.cuCtxPopCurrent(&context);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

  // An error of a GPU that is lost: then another context, or none, is current.
  CUresult pushed() const { return pushed_; }

 private:
  const Driver& driver_;
  const CUresult pushed_;
};

// Opens and initializes the driver at the first call; later calls return the same result. Errors:
// FAILED_PRECONDITION with the reason why this machine has no CUDA device and the next step: no
// driver, the toolkit's stub instead of one, one older than the kernels, or no GPU.
absl::StatusOr<const Driver*> OpenDriver();

// "13.0".
std::string CudaVersionText(int version);

}  // namespace agmm
