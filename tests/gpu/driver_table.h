// The driver and cuBLASLt as tables of functions, for tests: opened by name or path, and never
// linked to.
#pragma once

#include <cublasLt.h>
#include <cuda.h>
#include <dlfcn.h>

#include <string>

#include "tests/model/functions.h"

struct DriverTable {
#define GPU_TEST_MEMBER(name) decltype(&::name) name = nullptr;
  MODEL_FUNCTIONS(GPU_TEST_MEMBER)

  // Returns "" or the reason why the driver cannot be used.
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
    MODEL_FUNCTIONS(GPU_TEST_FIND)
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
  MODEL_BLAS_FUNCTIONS(GPU_TEST_MEMBER)

  // Returns "" or the reason why cuBLASLt cannot be used.
  std::string Open(const std::string& library) {
    void* handle = dlopen(library.c_str(), RTLD_NOW);
    if (!handle) return dlerror();
#define GPU_TEST_SYMBOL(name)                                                \
  this->name = reinterpret_cast<decltype(this->name)>(dlsym(handle, #name)); \
  if (!this->name) return library + " has no " #name;
    MODEL_BLAS_FUNCTIONS(GPU_TEST_SYMBOL)
    return "";
  }
};
