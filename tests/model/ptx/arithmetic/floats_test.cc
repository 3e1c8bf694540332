#include "tests/model/ptx/arithmetic/floats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/model/ptx/arithmetic/rounding.h"

namespace ptx {
namespace {

TEST(Floats, EveryNumberOfASmallFormatSurvivesF32AndF64) {
  for (uint32_t i = 0; i < 0x10000; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float f16 = FloatOfF16(bits), bf16 = FloatOfBF16(bits);
    EXPECT_EQ(F16OfFloat(f16), f16 != f16 ? kNanF16 : bits);
    EXPECT_EQ(F16Of(double{f16}), f16 != f16 ? kNanF16 : bits);
    EXPECT_EQ(BF16OfFloat(bf16), bf16 != bf16 ? kNanBF16 : bits);
    EXPECT_EQ(BF16Of(double{bf16}), bf16 != bf16 ? kNanBF16 : bits);
  }
  for (uint32_t i = 0; i < 0x100; ++i) {
    const auto bits = static_cast<uint8_t>(i);
    const float e4m3 = FloatOfE4M3(bits), e5m2 = FloatOfE5M2(bits);
    EXPECT_EQ(E4M3OfFloat(e4m3), e4m3 != e4m3 ? kNanE4M3 : bits);
    if (std::isfinite(e5m2)) {
      EXPECT_EQ(E5M2OfFloat(e5m2), bits);
    }
  }
}

TEST(Floats, KnownValues) {
  EXPECT_EQ(FloatOfF16(0x0001), 0x1p-24f);
  EXPECT_EQ(FloatOfF16(0x7bff), 65504.0f);
  EXPECT_EQ(FloatOfF16(0xfc00), -INFINITY);
  EXPECT_EQ(FloatOfE4M3(0x01), 0x1p-9f);
  EXPECT_EQ(FloatOfE4M3(0xfe), -448.0f);
  EXPECT_TRUE(std::isnan(FloatOfE4M3(0x7f)));
  EXPECT_EQ(FloatOfE5M2(0x7b), 57344.0f);
  EXPECT_EQ(FloatOfE5M2(0x7c), INFINITY);
  EXPECT_EQ(F16OfFloat(65520.0f), 0x7c00);
  EXPECT_EQ(BF16OfFloat(0x1.ffp127f), 0x7f80);
  EXPECT_EQ(E4M3OfFloat(-INFINITY), 0xfe);
  EXPECT_EQ(E4M3OfFloat(464.0f), 0x7e);
  EXPECT_EQ(E5M2OfFloat(1e9f), 0x7b);
}

// No neighbour is nearer; if one is equally near, the result is the even one.
template <typename To, typename From>
void CheckNearest(To to, From from, uint32_t greatest) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const float value =
        std::bit_cast<float>(static_cast<uint32_t>((random() & 0x0fffffff) + 0x37000000));
    const uint32_t bits = to(value);
    if (bits > greatest || value > from(greatest)) continue;
    const auto distance = [&](uint32_t other) { return std::fabs(double{from(other)} - value); };
    for (const uint32_t other : {bits - 1, bits + 1}) {
      if (other > greatest) continue;
      EXPECT_GE(distance(other), distance(bits)) << value;
      EXPECT_FALSE(distance(other) == distance(bits) && (bits & 1)) << value;
    }
  }
}

TEST(Floats, TheNearestNumberIsTaken) {
  CheckNearest(
      F16OfFloat, [](uint32_t bits) { return FloatOfF16(static_cast<uint16_t>(bits)); }, 0x7bff);
  CheckNearest(
      BF16OfFloat, [](uint32_t bits) { return FloatOfBF16(static_cast<uint16_t>(bits)); }, 0x7f7f);
  CheckNearest(
      E4M3OfFloat, [](uint32_t bits) { return FloatOfE4M3(static_cast<uint8_t>(bits)); }, 0x7e);
  CheckNearest(
      E5M2OfFloat, [](uint32_t bits) { return FloatOfE5M2(static_cast<uint8_t>(bits)); }, 0x7b);
}

TEST(Rounding, DirectionsEncloseTheExactValue) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 200000; ++i) {
    const uint64_t bits = (random() & 0x87ffffffffffffff) + (uint64_t{0x370} << 52);
    const auto exact = std::bit_cast<double>(bits);
    const auto check = [&](double zero, double down, double up) {
      EXPECT_LE(down, exact);
      EXPECT_GE(up, exact);
      EXPECT_EQ(zero, exact < 0 ? up : down);
    };
    check(RoundToF32(exact, Rounding::kZero), RoundToF32(exact, Rounding::kDown),
          RoundToF32(exact, Rounding::kUp));
    check(FloatOfF16(RoundToF16(exact, Rounding::kZero)),
          FloatOfF16(RoundToF16(exact, Rounding::kDown)),
          FloatOfF16(RoundToF16(exact, Rounding::kUp)));
    check(FloatOfBF16(RoundToBF16(exact, Rounding::kZero)),
          FloatOfBF16(RoundToBF16(exact, Rounding::kDown)),
          FloatOfBF16(RoundToBF16(exact, Rounding::kUp)));
  }
}

TEST(Rounding, AFusedProductRoundsOnce) {
  std::mt19937 random(1);
  for (int i = 0; i < 200000; ++i) {
    const auto number = [&] {
      return std::bit_cast<float>(static_cast<uint32_t>((random() & 0x83ffffff) + 0x3e000000));
    };
    const float a = number(), b = number(), c = number();
    EXPECT_EQ(RoundToF32(AddToOdd(double{a} * b, c), Rounding::kNearest), std::fma(a, b, c));
    EXPECT_EQ(RoundToF32(DivideToOdd(a, b), Rounding::kNearest), a / b);
  }
}

TEST(Rounding, IntegersOf64BitsKeepTheirLastBits) {
  EXPECT_EQ(IntegerToOdd(1), 1.0);
  EXPECT_EQ(static_cast<float>(IntegerToOdd((uint64_t{1} << 62) + (uint64_t{1} << 38) + 1)),
            0x1.000002p62f);
  EXPECT_EQ(static_cast<float>(IntegerToOdd((uint64_t{1} << 62) + (uint64_t{1} << 38))), 0x1p62f);
  EXPECT_EQ(static_cast<float>(IntegerToOdd(~uint64_t{0})), 0x1p64f);
}

}  // namespace
}  // namespace ptx
