// The host bodies of the GPU's kernels against kernels/base, bit for bit.
#include "kernels/cuda/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/cuda/kernels.h"

namespace agmm {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// All values that lie next to a power of two or to the middle between two narrow values, and many
// others.
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

TEST(Elementwise, NarrowingIsThatOfTheHostForManyF32) {
  const std::vector<float> values = ManyFloats();
  std::vector<uint16_t> bf16(values.size()), f16(values.size());
  ConvertFromF32(DType::kBF16, values.data(), bf16.data(), values.size());
  ConvertFromF32(DType::kF16, values.data(), f16.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(F32ToBF16(values[i]), bf16[i]) << std::bit_cast<uint32_t>(values[i]);
    ASSERT_EQ(F32ToF16(values[i]), f16[i]) << std::bit_cast<uint32_t>(values[i]);
  }
}

TEST(Elementwise, WideningIsThatOfTheHostForAllValues) {
  std::vector<uint16_t> bits(1 << 16);
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  std::vector<float> bf16(bits.size()), f16(bits.size());
  ConvertToF32(DType::kBF16, bits.data(), bf16.data(), bits.size());
  ConvertToF32(DType::kF16, bits.data(), f16.data(), bits.size());
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(BitsOf(BF16ToF32(bits[i])), std::bit_cast<uint32_t>(bf16[i])) << i;
    ASSERT_EQ(BitsOf(F16ToF32(bits[i])), std::bit_cast<uint32_t>(f16[i])) << i;
  }
}

TEST(Elementwise, ReduceAddsInF32AndConvertsTheSum) {
  for (DType from : kDTypes) {
    for (DType out : kDTypes) {
      const float addends[] = {1.5f, -2.25f, 1024.0f}, sums[] = {0.0078125f, 1000.0f, 3.0f};
      float into[3];
      std::memcpy(into, sums, sizeof(sums));
      float narrow[3], converted[3] = {}, expected[3] = {};
      ConvertFromF32(from, addends, narrow, 3);
      elementwise::Reduce work;
      work.from = {narrow, 0, from};
      work.into = {into, 0, DType::kF32};
      work.out = {converted, 0, out};
      work.rows = 1;
      work.cols = 3;
      for (int64_t col = 0; col < 3; ++col) elementwise::Element(work, 0, col);
      float total[3];
      for (int i = 0; i < 3; ++i) total[i] = sums[i] + addends[i];
      EXPECT_EQ(std::memcmp(into, total, sizeof(total)), 0);
      ConvertFromF32(out, total, expected, 3);
      EXPECT_EQ(std::memcmp(converted, expected, sizeof(expected)), 0);
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
