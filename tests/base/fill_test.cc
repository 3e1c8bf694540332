// The values of a fill, against the documented formula.
#include "kernels/base/fill.h"

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace agmm {
namespace {

std::vector<float> Values(const FillSpec& fill, DType dtype, int64_t index, int64_t count) {
  std::vector<std::byte> bits(count * SizeOf(dtype));
  FillValues(fill, dtype, index, count, bits.data());
  std::vector<float> values(count);
  ConvertToF32(dtype, bits.data(), values.data(), count);
  return values;
}

// splitmix64 as it is usually written: a state that advances.
class SplitMix {
 public:
  explicit SplitMix(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

TEST(Fill, ValuesAreThoseOfSplitMix) {
  // The published first output for seed 1234567.
  ASSERT_EQ(SplitMix(1234567).Next(), 6457827717110365317u);
  SplitMix mix(1234567);
  const auto uniform = Values(FillSpec{FillKind::kUniform, 1234567}, DType::kF32, 0, 3000);
  const auto integers = Values(FillSpec{FillKind::kIntegers, 1234567}, DType::kF32, 0, 3000);
  for (int i = 0; i < 3000; ++i) {
    const uint64_t bits = mix.Next();
    ASSERT_EQ(uniform[i], static_cast<float>(bits >> 40) / (1 << 23) - 1) << i;
    ASSERT_EQ(integers[i], static_cast<float>(static_cast<int64_t>(((bits >> 32) * 9) >> 32) - 4))
        << i;
  }
}

TEST(Fill, AnElementDependsOnItsIndexAlone) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const FillSpec fill{FillKind::kUniform, 7};
    const auto all = Values(fill, dtype, 0, 5000);
    for (int64_t index : {1, 1023, 1024, 1500, 4999}) {
      const auto part = Values(fill, dtype, index, 5000 - index);
      ASSERT_EQ(part, std::vector<float>(all.begin() + index, all.end())) << index;
    }
  }
}

TEST(Fill, OtherSeedsGiveOtherValues) {
  EXPECT_NE(Values({FillKind::kUniform, 1}, DType::kF32, 0, 16),
            Values({FillKind::kUniform, 2}, DType::kF32, 0, 16));
}

TEST(Fill, UniformValuesStayBelowOneInEveryDType) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    double sum = 0, squares = 0;
    float least = 1, most = -1;
    constexpr int kCount = 1 << 20;
    for (float value : Values({FillKind::kUniform, 3}, dtype, 0, kCount)) {
      least = std::min(least, value);
      most = std::max(most, value);
      sum += value;
      squares += value * value;
    }
    EXPECT_GE(least, -1) << Name(dtype);
    EXPECT_LT(least, -0.99) << Name(dtype);
    EXPECT_LT(most, 1) << Name(dtype);
    EXPECT_GT(most, 0.99) << Name(dtype);
    // The bound is five standard deviations of the means.
    EXPECT_NEAR(sum / kCount, 0, 5 * std::sqrt(1. / 3 / kCount)) << Name(dtype);
    EXPECT_NEAR(squares / kCount, 1. / 3, 5 * std::sqrt(4. / 45 / kCount)) << Name(dtype);
  }
}

TEST(Fill, IntegersAreFromMinusFourToFourInEveryDType) {
  const std::set<float> nine = {-4, -3, -2, -1, 0, 1, 2, 3, 4};
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const auto values = Values({FillKind::kIntegers, 3}, dtype, 0, 10000);
    EXPECT_EQ(std::set<float>(values.begin(), values.end()), nine) << Name(dtype);
  }
}

TEST(Fill, AConstantIsRoundedToTheDType) {
  for (float value : Values({FillKind::kConstant, 0, 0.1}, DType::kBF16, 5, 3000))
    ASSERT_EQ(value, BF16ToF32(F32ToBF16(0.1f)));
}

TEST(Fill, SingleElementsEqualTheBatch) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (FillKind kind : {FillKind::kUniform, FillKind::kIntegers, FillKind::kConstant}) {
      const FillSpec fill{kind, 0xfedcba9876543210, 0.3};
      constexpr int64_t kFirst = int64_t{1} << 40;
      const auto values = Values(fill, dtype, kFirst, 3000);
      for (int64_t i = 0; i < 3000; ++i) {
        float one = FillValue(fill, LargestBelowOne(dtype), kFirst + i);
        std::byte bits[sizeof(float)];
        ConvertFromF32(dtype, &one, bits, 1);
        ConvertToF32(dtype, bits, &one, 1);
        ASSERT_EQ(values[i], one) << Name(dtype) << ' ' << static_cast<int>(kind) << ' ' << i;
      }
    }
  }
}

TEST(Fill, AConstantThatTheDTypeDoesNotHoldIsRefused) {
  EXPECT_TRUE(CheckFill({FillKind::kUniform}, DType::kBF16).ok());
  const FillSpec large{FillKind::kConstant, 0, 1e6};
  EXPECT_TRUE(CheckFill(large, DType::kF32).ok());
  const absl::Status refused = CheckFill(large, DType::kF16);
  EXPECT_EQ(refused.message(),
            "a fill with 1e+06 is beyond what f16 holds; take a smaller value or a wider dtype");
  EXPECT_TRUE(
      CheckFill({FillKind::kConstant, 0, std::numeric_limits<double>::infinity()}, DType::kF16)
          .ok());
}

}  // namespace
}  // namespace agmm
