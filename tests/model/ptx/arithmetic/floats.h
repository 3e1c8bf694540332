// The small float formats of PTX: f16, bf16, e4m3 and e5m2, converted to and from f32 and f64.
//
// All roundings are to nearest, ties to even, unless a name says otherwise. A NaN becomes the
// canonical NaN of the result, as on the GPU: all bits ones, except the sign.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <type_traits>

namespace ptx {

constexpr uint16_t kNanF16 = 0x7fff, kNanBF16 = 0x7fff;
constexpr uint8_t kNanE4M3 = 0x7f, kNanE5M2 = 0x7f;
constexpr uint32_t kNanF32 = 0x7fffffff;

// The bits of f32 or f64, as an unsigned integer of the same size.
template <typename Float>
using BitsOf = std::conditional_t<sizeof(Float) == 8, uint64_t, uint32_t>;

// Rounds a positive number or infinity to a format with `kMantissa` explicit bits and this exponent
// bias, as if its exponent had no upper bound. Of two results, the one with the greater bits is the
// greater number.
template <int kMantissa, int kBias, typename Float>
constexpr BitsOf<Float> RoundSize(Float size) {
  using Word = BitsOf<Float>;
  constexpr int kFrom = sizeof(Float) == 8 ? 52 : 23, kFromBias = sizeof(Float) == 8 ? 1023 : 127;
  constexpr int kDropped = kFrom - kMantissa;
  const Word bits = std::bit_cast<Word>(size);
  const Word rounded = bits + ((Word{1} << (kDropped - 1)) - 1) + (bits >> kDropped & 1);
  if constexpr (kBias == kFromBias) {
    return rounded >> kDropped;
  } else {
    constexpr Word kShift = Word{kFromBias - kBias} << kFrom, kOneExponent = Word{1} << kFrom;
    // Added to this power of two, a subnormal number of the result gets the step of its format.
    constexpr Word kMagic = Word{kFromBias + 1 - kBias + kDropped} << kFrom;
    const Word subnormal = std::bit_cast<Word>(size + std::bit_cast<Float>(kMagic)) - kMagic;
    const Word normal = (rounded - kShift) >> kDropped;
    return bits < kShift + kOneExponent ? subnormal : normal;
  }
}

// The same with a sign. `kInfinity` is the least number of the format that is not finite; greater
// ones become `kGreatest`: infinity, or the greatest finite number.
template <int kMantissa, int kBias, int kWidth, uint32_t kInfinity, uint32_t kGreatest,
          uint32_t kNan, typename Float>
constexpr uint32_t RoundTo(Float value) {
  using Word = BitsOf<Float>;
  constexpr int kTop = sizeof(Float) * 8 - 1;
  const Word bits = std::bit_cast<Word>(value);
  const Word sign = bits >> kTop;
  const Float size = std::bit_cast<Float>(bits & ~(Word{1} << kTop));
  const Word rounded = RoundSize<kMantissa, kBias>(size);
  const Word bounded = rounded >= kInfinity ? kGreatest : rounded;
  const Word result = bounded | sign << (kWidth - 1);
  return static_cast<uint32_t>(value != value ? kNan : result);
}

constexpr float FloatOfBF16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

constexpr float FloatOfF16(uint16_t bits) {
  constexpr uint32_t kShift = uint32_t{112} << 23, kInfinity = uint32_t{31} << 23;
  const uint32_t sign = uint32_t{bits} >> 15 << 31, size = (bits & 0x7fffu) << 13;
  const uint32_t normal = size + kShift + (size >= kInfinity ? kShift : 0);
  const float subnormal = std::bit_cast<float>(size + kShift + (1u << 23)) - 0x1p-14f;
  const uint32_t chosen = size < 1u << 23 ? std::bit_cast<uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(chosen | sign);
}

template <typename Float>
constexpr uint16_t F16Of(Float value) {
  return static_cast<uint16_t>(RoundTo<10, 15, 16, 0x7c00, 0x7c00, kNanF16>(value));
}
template <typename Float>
constexpr uint16_t BF16Of(Float value) {
  return static_cast<uint16_t>(RoundTo<7, 127, 16, 0x7f80, 0x7f80, kNanBF16>(value));
}
constexpr uint16_t F16OfFloat(float value) { return F16Of(value); }
constexpr uint16_t BF16OfFloat(float value) { return BF16Of(value); }
// These two give the greatest finite number for all that is greater, infinity included
// (.satfinite).
constexpr uint8_t E4M3OfFloat(float value) {
  return static_cast<uint8_t>(RoundTo<3, 7, 8, 0x7f, 0x7e, kNanE4M3>(value));
}
constexpr uint8_t E5M2OfFloat(float value) {
  return static_cast<uint8_t>(RoundTo<2, 15, 8, 0x7c, 0x7b, kNanE5M2>(value));
}

constexpr std::array<float, 256> MakeE5M2() {
  std::array<float, 256> values{};
  for (uint32_t bits = 0; bits < 256; ++bits)
    values[bits] = FloatOfF16(static_cast<uint16_t>(bits << 8));
  return values;
}
constexpr std::array<float, 256> MakeE4M3() {
  std::array<float, 256> values{};
  for (uint32_t bits = 0; bits < 256; ++bits) {
    // As bits of f16, the exponent's bias is 8 too high. Exponent 15 is that of numbers, too.
    const auto half = static_cast<uint16_t>((bits & 0x80) << 8 | (bits & 0x7f) << 7);
    values[bits] =
        (bits & 0x7f) == 0x7f ? std::bit_cast<float>(kNanF32) : FloatOfF16(half) * 256.0f;
  }
  return values;
}
inline constexpr std::array<float, 256> kFloatsOfE5M2 = MakeE5M2(), kFloatsOfE4M3 = MakeE4M3();
constexpr float FloatOfE4M3(uint8_t bits) { return kFloatsOfE4M3[bits]; }
constexpr float FloatOfE5M2(uint8_t bits) { return kFloatsOfE5M2[bits]; }

}  // namespace ptx
