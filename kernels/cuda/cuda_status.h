// Results of the CUDA driver and of cuBLASLt as statuses.
#pragma once

#include <cublasLt.h>
#include <cuda.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/driver.h"

namespace agmm {

// The consequence of a result for its context.
enum class CudaFault {
  kNone,
  kCall,  // of this call alone: no memory, a wrong argument
  kLost,  // all later calls of the context fail too: an illegal address, a lost GPU
};
CudaFault FaultOf(CUresult result);

// "cuMemCreate on GPU 2 failed: CUDA_ERROR_OUT_OF_MEMORY: out of memory; ...next step". OK for
// CUDA_SUCCESS. RESOURCE_EXHAUSTED without memory, UNAVAILABLE for a GPU that is lost, else
// INTERNAL. `where`: "GPU 2"; may be empty.
absl::Status CudaStatus(const Driver& driver, CUresult result, absl::string_view call,
                        absl::string_view where);
absl::Status CublasStatus(cublasStatus_t result, absl::string_view call, absl::string_view where);

}  // namespace agmm

// Returns the status of the driver's `call`, such as cuEventRecord(event, stream), from the
// enclosing function if it is an error. `gpu` has a driver() and Failed(result, call).
#define AGMM_CUDA_RETURN(gpu, function, ...)                                      \
  do {                                                                            \
    const CUresult agmm_result = (gpu).driver().function(__VA_ARGS__);            \
    if (agmm_result != CUDA_SUCCESS) return (gpu).Failed(agmm_result, #function); \
  } while (false)
