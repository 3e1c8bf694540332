// The rates of a machine: times of products, and what a machine may not have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/predict/machine.h"

namespace agmm::test {
namespace {

DeviceRates TwoSizes() {
  return {.gemm = {{DType::kF32, 1e6, 100}, {DType::kF32, 1e9, 1000}}, .memory = 10};
}

TEST(GemmNs, IsTheMeasuredTimeAtTheMeasuredSizes) {
  EXPECT_DOUBLE_EQ(GemmNs(TwoSizes(), DType::kF32, 1e6), 1e4);
  EXPECT_DOUBLE_EQ(GemmNs(TwoSizes(), DType::kF32, 1e9), 1e6);
}

TEST(GemmNs, KeepsTheRateBeyondTheMeasuredSizes) {
  EXPECT_DOUBLE_EQ(GemmNs(TwoSizes(), DType::kF32, 1e5), 1e3);
  EXPECT_DOUBLE_EQ(GemmNs(TwoSizes(), DType::kF32, 1e12), 1e9);
}

TEST(GemmNs, GrowsWithTheSize) {
  double last = 0;
  for (double flops = 1e4; flops < 1e12; flops *= 1.1) {
    const double time = GemmNs(TwoSizes(), DType::kF32, flops);
    EXPECT_GT(time, last) << flops;
    last = time;
  }
}

TEST(Machine, RefusesRatesThatOverflowTimes) {
  Machine machine;
  machine.within.rates = machine.staged.rates = machine.between.rates = {1, 2, 0};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    machine.device.gemm.push_back({dtype, 1e6, 100});
  machine.device.memory = 10;
  ASSERT_EQ(Validate(machine), absl::OkStatus());
  for (const double rate : {1e-300, 0.0, -1.0, 1e300}) {
    Machine wrong = machine;
    wrong.between.rates = {rate, 2 * rate, 0};
    EXPECT_EQ(Validate(wrong).code(), absl::StatusCode::kInvalidArgument) << rate;
  }
  machine.device.signal_ns = 1e300;
  EXPECT_EQ(Validate(machine).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace agmm::test
