// Roundings other than to nearest, and the steps of PTX's floating-point arithmetic around a
// rounding.
//
// An exact result is first rounded to odd as f64, and then in the direction that the instruction
// names. Because f64 has more than twice the bits of f32, the two roundings give the same as one.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tests/model/ptx/arithmetic/floats.h"

namespace ptx {

enum class Rounding : uint8_t { kNearest, kZero, kDown, kUp };  // rn, rz, rm, rp

// Subnormal numbers become zero (.ftz).
template <typename T>
T Flush(T value) {
  using Word = BitsOf<T>;
  constexpr int kTop = sizeof(T) * 8 - 1, kMantissa = std::numeric_limits<T>::digits - 1;
  const Word bits = std::bit_cast<Word>(value), size = bits & ~(Word{1} << kTop);
  return std::bit_cast<T>(size >> kMantissa == 0 ? bits & Word{1} << kTop : bits);
}

// The NaN that f32 arithmetic gives. Those of f64 keep their bits on the GPU, as here.
inline float Canonical(float value) {
  return value != value ? std::bit_cast<float>(kNanF32) : value;
}
inline double Canonical(double value) { return value; }

// .sat: to [0, 1]; a NaN becomes zero.
template <typename T>
T Saturate(T value) {
  return value > 0 ? (value < 1 ? value : T{1}) : T{0};
}

// `nearest` is an exact result rounded to nearest, and `error` has the sign of the exact result
// minus `nearest`. Returns the exact result rounded to odd.
inline double ToOdd(double nearest, double error) {
  const auto bits = std::bit_cast<uint64_t>(nearest);
  if (error == 0 || !std::isfinite(nearest) || !std::isfinite(error) || (bits & 1)) return nearest;
  const bool away = (error > 0) == (nearest > 0);
  return std::bit_cast<double>(away ? bits + 1 : bits - 1);
}
// The rounding that follows determines the sign of a zero.
inline double AddToOdd(double a, double b, Rounding rounding = Rounding::kNearest) {
  const double sum = a + b, b_part = sum - a;
  if (sum == 0 && rounding == Rounding::kDown && std::signbit(a) != std::signbit(b)) return -0.0;
  return ToOdd(sum, (a - (sum - b_part)) + (b - b_part));
}
// Quotient and square root of f32 numbers.
inline double DivideToOdd(float a, float b) {
  const double quotient = double{a} / b, rest = std::fma(-quotient, double{b}, double{a});
  return ToOdd(quotient, b < 0 ? -rest : rest);
}
inline double RootToOdd(float a) {
  const double root = std::sqrt(double{a});
  return ToOdd(root, std::fma(-root, root, double{a}));
}
// Keeps the upper 53 of 64 bits.
inline double IntegerToOdd(uint64_t value) {
  if (value >> 53 == 0) return static_cast<double>(value);
  return static_cast<double>((value & ~uint64_t{0x7ff}) | (value & 0x7ff ? 0x800 : 0));
}

// The step, in bits, from the size of the nearest number to that of the number that `rounding`
// gives. `less` and `greater` tell how the size of the nearest number compares with the exact one.
inline int StepOf(Rounding rounding, bool negative, bool less, bool greater) {
  const bool away = negative ? rounding == Rounding::kDown : rounding == Rounding::kUp;
  if (rounding == Rounding::kNearest) return 0;
  return away ? less : -int{greater};
}

// Rounds f64 to f32, f16 or bf16. `of` gives the nearest number as bits, `to` gives its value.
template <typename Word, typename Of, typename To>
Word RoundWith(double exact, Rounding rounding, Of of, To to) {
  const Word nearest = of(exact);
  const double size = std::fabs(static_cast<double>(to(nearest))), exact_size = std::fabs(exact);
  return static_cast<Word>(
      nearest + StepOf(rounding, std::signbit(exact), size<exact_size, size> exact_size));
}
inline float RoundToF32(double exact, Rounding rounding) {
  return std::bit_cast<float>(RoundWith<uint32_t>(
      exact, rounding,
      [](double value) { return std::bit_cast<uint32_t>(static_cast<float>(value)); },
      [](uint32_t bits) { return std::bit_cast<float>(bits); }));
}
inline uint16_t RoundToF16(double exact, Rounding rounding) {
  return RoundWith<uint16_t>(exact, rounding, F16Of<double>, FloatOfF16);
}
inline uint16_t RoundToBF16(double exact, Rounding rounding) {
  return RoundWith<uint16_t>(exact, rounding, BF16Of<double>, FloatOfBF16);
}

}  // namespace ptx
