#include "kernels/cuda/cuda_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace agmm {
namespace {

std::string At(absl::string_view where) {
  return where.empty() ? std::string() : absl::StrCat(" on ", where);
}

}  // namespace

CudaFault FaultOf(CUresult result) {
  switch (result) {
    case CUDA_SUCCESS: return CudaFault::kNone;
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN: return CudaFault::kLost;
    default: return CudaFault::kCall;
  }
}

absl::Status CudaStatus(const Driver& driver, CUresult result, absl::string_view call,
                        absl::string_view where) {
  const CudaFault fault = FaultOf(result);
  if (fault == CudaFault::kNone) return absl::OkStatus();
  const std::string failed =
      absl::StrFormat("%s%s failed: %s", call, At(where), driver.Describe(result));
  if (fault == CudaFault::kLost) {
    return absl::UnavailableError(absl::StrCat(
        failed,
        "; this daemon cannot use the GPU any more: look for \"Xid\" in the kernel log and "
        "restart the daemon"));
  }
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return absl::ResourceExhaustedError(
          absl::StrCat(failed, "; give the device a smaller heap, or free memory of the GPU"));
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return absl::FailedPreconditionError(absl::StrCat(
          failed, "; the GPU is older than sm_80, or the driver older than the kernels' toolkit"));
    default:
      return absl::InternalError(
          absl::StrCat(failed, "; the epoch is lost and the GPU is not: report this message"));
  }
}

absl::Status CublasStatus(cublasStatus_t result, absl::string_view call, absl::string_view where) {
  if (result == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const auto text = [&](absl::string_view name, absl::string_view next) {
    return absl::StrFormat("%s%s failed: %s (%d); %s", call, At(where), name, result, next);
  };
  switch (result) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return absl::ResourceExhaustedError(
          text("CUBLAS_STATUS_ALLOC_FAILED", "give the device a smaller heap"));
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return absl::FailedPreconditionError(
          text("CUBLAS_STATUS_ARCH_MISMATCH", "install a cuBLASLt that knows the GPU"));
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return absl::FailedPreconditionError(text(
          "CUBLAS_STATUS_NOT_INITIALIZED", "install a cuBLASLt of the driver's version of CUDA"));
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return absl::UnimplementedError(
          text("CUBLAS_STATUS_NOT_SUPPORTED", "report the shapes and types of the product"));
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return absl::UnavailableError(
          text("CUBLAS_STATUS_EXECUTION_FAILED", "look for \"Xid\" in the kernel log"));
    default: return absl::InternalError(text("cuBLASLt's error", "report this message"));
  }
}

}  // namespace agmm
