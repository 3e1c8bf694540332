// The driver and cuBLASLt as tables of functions, for tests: opened by name or path, and never
// linked to.
#pragma once

#include <cublasLt.h>
#include <cuda.h>
#include <dlfcn.h>

#include <string>

// Names as cuGetProcAddress takes them; cuda.h makes each the newest version of the function.
#define GPU_TEST_FUNCTIONS(F)                                                                     \
  F(cuInit)                                                                                       \
  F(cuDriverGetVersion)                                                                           \
  F(cuGetErrorName)                                                                               \
  F(cuGetErrorString) F(cuDeviceGetCount) F(cuDeviceGet) F(cuDeviceGetName) F(cuDeviceGetUuid)    \
      F(cuDeviceTotalMem) F(cuDeviceGetAttribute) F(cuDeviceCanAccessPeer)                        \
          F(cuDeviceGetP2PAttribute) F(cuDeviceGetPCIBusId) F(cuDevicePrimaryCtxRetain)           \
              F(cuDevicePrimaryCtxRelease) F(cuCtxPushCurrent) F(cuCtxPopCurrent) F(cuMemGetInfo) \
                  F(cuMemGetAllocationGranularity) F(cuMemAddressReserve) F(cuMemAddressFree)     \
                      F(cuMemCreate) F(cuMemRelease) F(cuMemMap) F(cuMemUnmap) F(cuMemSetAccess)  \
                          F(cuMemAlloc) F(cuMemFree) F(cuMemHostAlloc) F(cuMemFreeHost)           \
                              F(cuStreamCreateWithPriority) F(cuStreamDestroy)                    \
                                  F(cuStreamWaitEvent) F(cuStreamQuery) F(cuStreamSynchronize)    \
                                      F(cuEventCreate) F(cuEventDestroy) F(cuEventRecord)         \
                                          F(cuEventQuery) F(cuEventSynchronize)                   \
                                              F(cuEventElapsedTime) F(cuMemcpyHtoDAsync)          \
                                                  F(cuMemcpyDtoHAsync) F(cuMemcpyDtoDAsync)       \
                                                      F(cuMemcpy2DAsync) F(cuMemsetD8Async)       \
                                                          F(cuLibraryLoadData) F(cuLibraryUnload) \
                                                              F(cuLibraryGetKernel)               \
                                                                  F(cuKernelGetFunction)          \
                                                                      F(cuLaunchKernel)

#define GPU_TEST_BLAS_FUNCTIONS(F)                                                           \
  F(cublasLtGetVersion)                                                                      \
  F(cublasLtCreate)                                                                          \
  F(cublasLtDestroy)                                                                         \
  F(cublasLtMatmulDescCreate) F(cublasLtMatmulDescDestroy) F(cublasLtMatmulDescSetAttribute) \
      F(cublasLtMatrixLayoutCreate) F(cublasLtMatrixLayoutDestroy)                           \
          F(cublasLtMatrixLayoutSetAttribute) F(cublasLtMatmulPreferenceCreate)              \
              F(cublasLtMatmulPreferenceDestroy) F(cublasLtMatmulPreferenceSetAttribute)     \
                  F(cublasLtMatmulAlgoGetHeuristic) F(cublasLtMatmul)

struct DriverTable {
#define GPU_TEST_MEMBER(name) decltype(&::name) name = nullptr;
  GPU_TEST_FUNCTIONS(GPU_TEST_MEMBER)
  decltype(&::cuGetProcAddress) cuGetProcAddress = nullptr;

  // Returns "" or why there is no driver.
  std::string Open(const std::string& library, int version = CUDA_VERSION) {
    void* handle = dlopen(library.c_str(), RTLD_NOW);
    if (!handle) return dlerror();
    cuGetProcAddress =
        reinterpret_cast<decltype(cuGetProcAddress)>(dlsym(handle, "cuGetProcAddress_v2"));
    if (!cuGetProcAddress) return library + " has no cuGetProcAddress_v2";
#define GPU_TEST_FIND(name)                                                            \
  if (std::string error = Find(#name, reinterpret_cast<void**>(&this->name), version); \
      !error.empty()) {                                                                \
    return error;                                                                      \
  }
    GPU_TEST_FUNCTIONS(GPU_TEST_FIND)
    return "";
  }

 private:
  std::string Find(const char* symbol, void** function, int version) {
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
    const CUresult result = cuGetProcAddress(symbol, function, version, 0, &status);
    if (result == CUDA_SUCCESS && *function) return "";
    return std::string(symbol) + ": error " + std::to_string(result) + ", status " +
           std::to_string(status);
  }
};

struct BlasTable {
  GPU_TEST_BLAS_FUNCTIONS(GPU_TEST_MEMBER)

  // Returns "" or why there is no cuBLASLt.
  std::string Open(const std::string& library) {
    void* handle = dlopen(library.c_str(), RTLD_NOW);
    if (!handle) return dlerror();
#define GPU_TEST_SYMBOL(name)                                                \
  this->name = reinterpret_cast<decltype(this->name)>(dlsym(handle, #name)); \
  if (!this->name) return library + " has no " #name;
    GPU_TEST_BLAS_FUNCTIONS(GPU_TEST_SYMBOL)
    return "";
  }
};
