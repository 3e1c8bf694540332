// The error on a machine without a driver, or with only the toolkit's stub.
#include "kernels/cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/cuda/cuda_device.h"

namespace agmm {
namespace {

TEST(Driver, AMissingDriverIsReportedWithReasonAndNextStep) {
  const auto driver = OpenDriver();
  if (driver.ok()) {
    EXPECT_GE((*driver)->version, 12000);
    return;
  }
  EXPECT_EQ(driver.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(driver.status().message()),
              testing::ContainsRegex("^no CUDA driver: .*(install|give|see) "));
  EXPECT_EQ(OpenDriver().status(), driver.status());
}

TEST(Driver, GetsAllHardwareQueuesUnlessTheUserSetsFewer) {
  constexpr char kVariable[] = "CUDA_DEVICE_MAX_CONNECTIONS";
  unsetenv(kVariable);
  SetUpCudaEnvironment();
  EXPECT_STREQ(getenv(kVariable), "32");
  setenv(kVariable, "4", /*overwrite=*/1);
  SetUpCudaEnvironment();
  EXPECT_STREQ(getenv(kVariable), "4");
}

TEST(Driver, VersionsAreShownWithADot) {
  EXPECT_EQ(CudaVersionText(13000), "13.0");
  EXPECT_EQ(CudaVersionText(12080), "12.8");
}

}  // namespace
}  // namespace agmm
