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

DeviceRates Cached() {
  DeviceRates device = TwoSizes();
  device.memory = 20;
  device.copy_ns_per_byte = 0.1;
  device.pack_ns_per_byte = 0.2;
  device.caches = {{1e6, 100}, {8e6, 80}};
  return device;
}

TEST(RatesWithin, AreThoseOfTheCachesThatHoldTheBytes) {
  EXPECT_DOUBLE_EQ(RatesWithin(Cached(), 0).memory, 100);
  EXPECT_DOUBLE_EQ(RatesWithin(Cached(), 1e6).memory, 100);
  EXPECT_DOUBLE_EQ(RatesWithin(Cached(), 8e6).memory, 80);
  EXPECT_DOUBLE_EQ(RatesWithin(Cached(), 64e6).memory, 20);
  EXPECT_DOUBLE_EQ(RatesWithin(Cached(), 1e12).memory, 20);
  EXPECT_DOUBLE_EQ(RatesWithin(Cached(), 8e6).copy_ns_per_byte, 0.1 * 20 / 80);
  EXPECT_DOUBLE_EQ(RatesWithin(Cached(), 8e6).pack_ns_per_byte, 0.2);
  double last = 1e9;
  for (double bytes = 1; bytes < 1e10; bytes *= 1.3) {
    const double rate = RatesWithin(Cached(), bytes).memory;
    EXPECT_LE(rate, last) << bytes;
    last = rate;
  }
}

TEST(RatesWithin, WithoutCachesAreTheDevices) {
  DeviceRates device = Cached();
  device.caches.clear();
  EXPECT_EQ(RatesWithin(device, 1), device);
}

TEST(ProductNs, CountsTheTrafficBeyondThatOfSquareMatrices) {
  DeviceRates device = Cached();
  device.multiply_ns = 7;
  const double flops = 2e9, square = 3e6 * 4;  // three matrices of 1000 x 1000 in f32
  const double arithmetic = 7 + GemmNs(device, DType::kF32, flops);
  EXPECT_DOUBLE_EQ(ProductNs(device, DType::kF32, flops, square / 2), arithmetic);
  EXPECT_NEAR(ProductNs(device, DType::kF32, flops, square), arithmetic, 1e-3);
  // A copy takes 0.1 ns to read and write a byte.
  EXPECT_NEAR(ProductNs(device, DType::kF32, flops, square + 1e6), arithmetic + 0.05e6, 1e-3);
  device.copy_ns_per_byte = 0;  // hardware that moves bytes beside the arithmetic
  EXPECT_DOUBLE_EQ(ProductNs(device, DType::kF32, flops, square + 1e6), arithmetic);
}

TEST(Machine, RefusesCachesOutOfOrder) {
  Machine machine;
  machine.within.rates = machine.staged.rates = machine.between.rates = {1, 2, 0};
  machine.device = Cached();
  machine.device.gemm = {{DType::kF32, 1e9, 1}, {DType::kBF16, 1e9, 1}, {DType::kF16, 1e9, 1}};
  EXPECT_TRUE(Validate(machine).ok()) << Validate(machine);
  machine.device.caches = {{8e6, 80}, {1e6, 70}};
  EXPECT_THAT(Validate(machine).message(), testing::HasSubstr("device.caches[1] has 1 MB"));
  machine.device.caches = {{8e6, 10}};
  EXPECT_THAT(Validate(machine).message(), testing::HasSubstr("device.caches[0] has 8 MB"));
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
