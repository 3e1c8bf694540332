// The functions of the driver and of cuBLASLt that the CUDA device may use: the model exports
// these, and tests find them. The names are those for cuGetProcAddress; cuda.h maps each to the
// newest version of the function.
#pragma once

// clang-format off
#define MODEL_FUNCTIONS(F) \
  F(cuInit) F(cuDriverGetVersion) F(cuGetProcAddress) F(cuGetErrorName) F(cuGetErrorString) \
  F(cuDeviceGetCount) F(cuDeviceGet) F(cuDeviceGetName) F(cuDeviceGetUuid) F(cuDeviceTotalMem) \
  F(cuDeviceGetAttribute) F(cuDeviceCanAccessPeer) F(cuDeviceGetP2PAttribute) F(cuDeviceGetPCIBusId) \
  F(cuDevicePrimaryCtxRetain) F(cuDevicePrimaryCtxRelease) F(cuCtxPushCurrent) F(cuCtxPopCurrent) \
  F(cuCtxGetStreamPriorityRange) F(cuStreamGetPriority) \
  F(cuMemGetInfo) F(cuMemGetAllocationGranularity) F(cuMemAddressReserve) F(cuMemAddressFree) \
  F(cuMemCreate) F(cuMemRelease) F(cuMemMap) F(cuMemUnmap) F(cuMemSetAccess) \
  F(cuMemAlloc) F(cuMemFree) F(cuMemHostAlloc) F(cuMemFreeHost) \
  F(cuStreamCreateWithPriority) F(cuStreamDestroy) F(cuStreamWaitEvent) F(cuStreamQuery) F(cuStreamSynchronize) \
  F(cuEventCreate) F(cuEventDestroy) F(cuEventRecord) F(cuEventQuery) F(cuEventSynchronize) F(cuEventElapsedTime) \
  F(cuMemcpyHtoDAsync) F(cuMemcpyDtoHAsync) F(cuMemcpyDtoDAsync) F(cuMemcpy2DAsync) F(cuMemsetD8Async) \
  F(cuLibraryLoadData) F(cuLibraryUnload) F(cuLibraryGetKernel) F(cuKernelGetFunction) F(cuFuncSetAttribute) F(cuOccupancyMaxActiveClusters) \
  F(cuLaunchKernel) F(cuLaunchKernelEx) F(cuTensorMapEncodeTiled)

#define MODEL_BLAS_FUNCTIONS(F) \
  F(cublasLtGetVersion) F(cublasLtCreate) F(cublasLtDestroy) \
  F(cublasLtMatmulDescCreate) F(cublasLtMatmulDescDestroy) F(cublasLtMatmulDescSetAttribute) \
  F(cublasLtMatrixLayoutCreate) F(cublasLtMatrixLayoutDestroy) F(cublasLtMatrixLayoutSetAttribute) \
  F(cublasLtMatmulPreferenceCreate) F(cublasLtMatmulPreferenceDestroy) F(cublasLtMatmulPreferenceSetAttribute) \
  F(cublasLtMatmulAlgoGetHeuristic) F(cublasLtMatmul)
// clang-format on
