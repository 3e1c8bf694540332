// Statuses for results of the driver and of cuBLASLt.
#include "kernels/cuda/cuda_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace agmm {
namespace {

using testing::HasSubstr;

CUresult NameOf(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OTHER";
  return CUDA_SUCCESS;
}
CUresult TextOf(CUresult, const char** text) {
  *text = "its text";
  return CUDA_SUCCESS;
}

Driver NamingDriver() {
  Driver driver;
  driver.cuGetErrorName = NameOf;
  driver.cuGetErrorString = TextOf;
  return driver;
}

TEST(CudaStatus, SuccessIsOk) {
  EXPECT_EQ(CudaStatus(NamingDriver(), CUDA_SUCCESS, "cuInit", ""), absl::OkStatus());
  EXPECT_EQ(CublasStatus(CUBLAS_STATUS_SUCCESS, "cublasLtCreate", ""), absl::OkStatus());
}

TEST(CudaStatus, NoMemoryIsResourceExhaustedWithCallPlaceAndNextStep) {
  const absl::Status status =
      CudaStatus(NamingDriver(), CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate", "GPU 2");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("cuMemCreate on GPU 2 failed: CUDA_ERROR_OUT_OF_MEMORY: its text; give "
                        "the device a smaller heap"));
}

TEST(CudaStatus, AnErrorThatStaysIsUnavailable) {
  for (CUresult result : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_LAUNCH_FAILED,
                          CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_UNKNOWN}) {
    EXPECT_EQ(FaultOf(result), CudaFault::kLost) << result;
    EXPECT_EQ(CudaStatus(NamingDriver(), result, "cuEventQuery", "GPU 0").code(),
              absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(FaultOf(CUDA_ERROR_OUT_OF_MEMORY), CudaFault::kCall);
  EXPECT_EQ(FaultOf(CUDA_ERROR_INVALID_VALUE), CudaFault::kCall);
}

TEST(CudaStatus, AnUnnamedResultIsANumber) {
  Driver driver;
  driver.cuGetErrorName = [](CUresult, const char**) { return CUDA_ERROR_INVALID_VALUE; };
  driver.cuGetErrorString = TextOf;
  EXPECT_THAT(driver.Describe(static_cast<CUresult>(998)), HasSubstr("CUDA error 998"));
}

TEST(CublasStatus, NoSuchProductIsUnimplemented) {
  const absl::Status status =
      CublasStatus(CUBLAS_STATUS_NOT_SUPPORTED, "cublasLtMatmulAlgoGetHeuristic", "GPU 1");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("on GPU 1 failed"));
}

}  // namespace
}  // namespace agmm
