// The host bodies of the GPU's kernels against kernels/base, bit for bit.
#include "kernels/cuda/elementwise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cuda/kernels.h"

namespace agmm {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// Returns the bits of the bf16 nearest to `value`, by arithmetic: eight significant bits, the last
// one even in a tie, and the exponents of f32. NaN keeps its upper bits and becomes quiet.
uint16_t NearestBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  if (std::isinf(value) || value == 0) return static_cast<uint16_t>(bits >> 16);
  const double unit = std::ldexp(1.0, std::max(std::ilogb(value), -126) - 7);
  const double nearest = std::nearbyint(value / unit) * unit;
  // Exact, or infinity, which is the next power of two beyond the largest f32.
  const float rounded = std::abs(nearest) >= 0x1p128
                            ? std::copysign(std::numeric_limits<float>::infinity(), value)
                            : std::copysign(static_cast<float>(nearest), value);
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(rounded) >> 16);
}

// Returns the value of a bf16 that is not NaN, by arithmetic.
float ValueOfBF16(uint16_t bits) {
  const int exponent = bits >> 7 & 0xff, mantissa = bits & 0x7f;
  const double magnitude = exponent == 0xff ? std::numeric_limits<double>::infinity()
                           : exponent == 0  ? std::ldexp(mantissa, -133)
                                            : std::ldexp(0x80 + mantissa, exponent - 134);
  return static_cast<float>((bits & 0x8000) != 0 ? -magnitude : magnitude);
}

// All values next to a power of two or next to the midpoint of two narrow values, and many others.
std::vector<float> ManyFloats() {
  std::vector<float> values;
  for (uint32_t high = 0; high < 0x10000; ++high) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x1fffu, 0x2000u, 0x2001u,
                         0x3000u, 0x7fffu, 0x8000u, 0x8001u, 0xefffu, 0xf000u, 0xffffu})
      values.push_back(std::bit_cast<float>(high << 16 | low));
  }
  std::mt19937 random(1);
  for (int i = 0; i < 1 << 20; ++i)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
  return values;
}

// The host's bf16 loops call the conversions of one element, so bf16 is compared with arithmetic.
// The host's f16 is the processor's or the compiler's.
TEST(Elementwise, NarrowingRoundsManyF32ToTheNearest) {
  const std::vector<float> values = ManyFloats();
  std::vector<uint16_t> bf16(values.size()), f16(values.size());
  ConvertFromF32(DType::kBF16, values.data(), bf16.data(), values.size());
  ConvertFromF32(DType::kF16, values.data(), f16.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t nearest = NearestBF16(values[i]);
    ASSERT_EQ(F32ToBF16(values[i]), nearest) << std::bit_cast<uint32_t>(values[i]);
    ASSERT_EQ(bf16[i], nearest) << std::bit_cast<uint32_t>(values[i]);
    ASSERT_EQ(F32ToF16(values[i]), f16[i]) << std::bit_cast<uint32_t>(values[i]);
  }
}

TEST(Elementwise, WideningIsExactForAllValues) {
  std::vector<uint16_t> bits(1 << 16);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> bf16(bits.size()), f16(bits.size());
  ConvertToF32(DType::kBF16, bits.data(), bf16.data(), bits.size());
  ConvertToF32(DType::kF16, bits.data(), f16.data(), bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    // Widening keeps the bits of NaN.
    const bool nan = (i & 0x7fff) > 0x7f80;
    const uint32_t exact =
        nan ? static_cast<uint32_t>(i) << 16 : std::bit_cast<uint32_t>(ValueOfBF16(bits[i]));
    ASSERT_EQ(BitsOf(BF16ToF32(bits[i])), exact) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16[i]), exact) << i;
    ASSERT_EQ(BitsOf(F16ToF32(bits[i])), std::bit_cast<uint32_t>(f16[i])) << i;
  }
}

TEST(Elementwise, ReduceAddsInF32InOrderAndConvertsTheSum) {
  for (DType from : kDTypes) {
    for (DType out : kDTypes) {
      const float addends[] = {1.5f, -2.25f, 1024.0f}, sums[] = {0.0078125f, 1000.0f, 3.0f};
      const float large[] = {3e8f, -3e8f, 0.0f};
      float acc[3];
      std::memcpy(acc, sums, sizeof(sums));
      float narrow[3], converted[3] = {}, expected[3] = {};
      ConvertFromF32(from, addends, narrow, 3);
      elementwise::Reduce work;
      work.from[0] = {acc, 0, DType::kF32};
      work.from[1] = {narrow, 0, from};
      work.from[2] = {const_cast<float*>(large), 0, DType::kF32};
      work.terms = 3;
      work.to = {converted, 0, out};
      work.rows = 1;
      work.cols = 3;
      for (int64_t col = 0; col < 3; ++col) elementwise::Element(work, 0, col);
      float total[3];
      for (int i = 0; i < 3; ++i) total[i] = (sums[i] + addends[i]) + large[i];
      EXPECT_EQ(std::memcmp(acc, sums, sizeof(sums)), 0) << "only read";
      ConvertFromF32(out, total, expected, 3);
      EXPECT_EQ(std::memcmp(converted, expected, sizeof(expected)), 0);
      work.to = work.from[0];
      for (int64_t col = 0; col < 3; ++col) elementwise::Element(work, 0, col);
      EXPECT_EQ(std::memcmp(acc, total, sizeof(total)), 0);
    }
  }
}

TEST(Elementwise, ConvertWalksBothPitches) {
  // Two rows of three, of pitches of five and four elements.
  const float from[] = {1, 2, 3, 0, 0, 4, 5, 6, 0, 0};
  uint16_t to[8] = {};
  elementwise::Convert work{
      {const_cast<float*>(from), 20, DType::kF32}, {to, 8, DType::kBF16}, 2, 3};
  for (int64_t row = 0; row < 2; ++row) {
    for (int64_t col = 0; col < 3; ++col) elementwise::Element(work, row, col);
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(to[i], F32ToBF16(static_cast<float>(1 + i)));
    EXPECT_EQ(to[4 + i], F32ToBF16(static_cast<float>(4 + i)));
  }
  EXPECT_EQ(to[3], 0);
}

}  // namespace
}  // namespace agmm
