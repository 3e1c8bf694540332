// cvt from and to integers.
#include <cmath>
#include <limits>
#include <utility>

#include "tests/model/ptx/arithmetic/conversion.h"
#include "tests/model/ptx/arithmetic/lanes.h"

namespace ptx {
namespace {

// ---- Integers to integers

// The value in a register that may be wider: a signed value is extended to the register's width.
template <typename T>
uint64_t Extended(T value, uint64_t width) {
  return static_cast<uint64_t>(static_cast<int64_t>(value)) & width;
}
uint64_t WidthOf(const Operand& target) {
  const int bytes = Bytes(target.type);
  return bytes == 8 ? ~uint64_t{0} : (uint64_t{1} << bytes * 8) - 1;
}

template <typename To, typename From>
To Clamped(From value) {
  using Limits = std::numeric_limits<To>;
  if (std::cmp_less(value, Limits::min())) return Limits::min();
  if (std::cmp_greater(value, Limits::max())) return Limits::max();
  return static_cast<To>(value);
}

template <typename To, typename From, bool kSat>
Outcome IntegerToInteger(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  Lanes own;
  const Lanes& source = CvtSource(warp, operands[1], instruction.from, own);
  Lanes& target = Target(warp, operands[0]);
  const uint64_t width = WidthOf(operands[0]);
  EachLane(mask, [&](int lane) {
    const From value = As<From>(source[lane]);
    target[lane] = Extended(kSat ? Clamped<To>(value) : static_cast<To>(value), width);
  });
  return Outcome::kNext;
}

// ---- Integers to floating point

// Rounds to nearest.
template <typename To, typename From>
Outcome IntegerToFloat(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  Lanes own;
  const Lanes& source = CvtSource(warp, operands[1], instruction.from, own);
  Lanes& target = Target(warp, operands[0]);
  EachLane(mask, [&](int lane) { target[lane] = Bits(static_cast<To>(As<From>(source[lane]))); });
  return Outcome::kNext;
}

// Rounds in any direction, to f32, f16 or bf16.
template <typename From>
Outcome IntegerToRounded(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  const auto rounding = static_cast<Rounding>(instruction.flags >> kCvtRoundingShift);
  Lanes own;
  const Lanes& source = CvtSource(warp, operands[1], instruction.from, own);
  Lanes& target = Target(warp, operands[0]);
  ForLanes(mask, [&](int lane) {
    const From value = As<From>(source[lane]);
    const auto wide = static_cast<uint64_t>(static_cast<int64_t>(value));
    double number = value < 0 ? -IntegerToOdd(-wide) : IntegerToOdd(wide);
    if (instruction.flags & kCvtSat) number = Saturate(number);
    target[lane] = BitsOfRounded(instruction.type, number, rounding);
  });
  return Outcome::kNext;
}

// ---- Floating point to integers

double RoundToInteger(double value, int rounding) {
  switch (rounding) {
    case CvtModifiers::kRni: return std::nearbyint(value);
    case CvtModifiers::kRmi: return std::floor(value);
    case CvtModifiers::kRpi: return std::ceil(value);
    default: return std::trunc(value);
  }
}

// The ISA: a NaN becomes zero, or the top bit alone if one of the types has 64 bits.
template <typename To>
To ToInteger(double value, int rounding, bool from_f64) {
  using Limits = std::numeric_limits<To>;
  constexpr int kBits = sizeof(To) * 8;
  if (value != value) {
    return from_f64 || kBits == 64 ? static_cast<To>(uint64_t{1} << (kBits - 1)) : To{0};
  }
  const double whole = RoundToInteger(value, rounding);
  // One more than the greatest value: f64 holds it exactly.
  constexpr double kEnd = 0x1p1 * static_cast<double>(uint64_t{1} << (Limits::digits - 1));
  if (whole < static_cast<double>(Limits::min())) return Limits::min();
  if (whole >= kEnd) return Limits::max();
  return static_cast<To>(whole);
}

template <typename To>
Outcome FloatToInteger(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  const Type from = instruction.from;
  const int rounding = instruction.variant;
  const bool ftz = instruction.flags & kCvtFtz;
  Lanes own;
  const Lanes& source = CvtSource(warp, operands[1], from, own);
  Lanes& target = Target(warp, operands[0]);
  const uint64_t width = WidthOf(operands[0]);
  ForLanes(mask, [&](int lane) {
    double value = ValueOf(from, source[lane]);
    if (ftz) value = Flush(static_cast<float>(value));
    target[lane] = Extended(ToInteger<To>(value, rounding, from == Type::kF64), width);
  });
  return Outcome::kNext;
}

// ---- By types

// Calls function(T{}) with the C++ type of an integer type; else returns null.
template <typename Function>
Execute WithInteger(Type type, Function function) {
  switch (type) {
    case Type::kU8: return function(uint8_t{});
    case Type::kU16: return function(uint16_t{});
    case Type::kU32: return function(uint32_t{});
    case Type::kU64: return function(uint64_t{});
    case Type::kS8: return function(int8_t{});
    case Type::kS16: return function(int16_t{});
    case Type::kS32: return function(int32_t{});
    case Type::kS64: return function(int64_t{});
    default: return nullptr;
  }
}

Execute DecodeIntegerToInteger(Instruction& instruction, const CvtModifiers& modifiers) {
  if (modifiers.rounding != CvtModifiers::kNone || modifiers.ftz) return nullptr;
  return WithInteger(instruction.type, [&](auto to) {
    return WithInteger(instruction.from, [&](auto from) -> Execute {
      using To = decltype(to);
      using From = decltype(from);
      return modifiers.sat ? IntegerToInteger<To, From, true> : IntegerToInteger<To, From, false>;
    });
  });
}

Execute DecodeIntegerToFloat(Instruction& instruction, const CvtModifiers& modifiers) {
  if (modifiers.rounding < CvtModifiers::kRn || modifiers.rounding > CvtModifiers::kRp) {
    return nullptr;
  }
  if (modifiers.ftz && instruction.type != Type::kF32) return nullptr;  // no result is subnormal
  instruction.flags = static_cast<uint32_t>(modifiers.rounding) << kCvtRoundingShift;
  if (modifiers.sat) instruction.flags |= kCvtSat;
  const Type type = instruction.type;
  return WithInteger(instruction.from, [&](auto from) -> Execute {
    using From = decltype(from);
    const bool plain = instruction.flags == 0;
    if (type == Type::kF32 && plain) return IntegerToFloat<float, From>;
    if (type != Type::kF64) return IntegerToRounded<From>;
    // All 32 bits fit into an f64, so that the rounding does not matter.
    if (modifiers.sat || (!plain && sizeof(From) == 8)) return nullptr;
    return IntegerToFloat<double, From>;
  });
}

Execute DecodeFloatToInteger(Instruction& instruction, const CvtModifiers& modifiers) {
  if (modifiers.rounding < CvtModifiers::kRni || modifiers.rounding > CvtModifiers::kRpi) {
    return nullptr;
  }
  if (modifiers.ftz && instruction.from != Type::kF32) return nullptr;
  instruction.variant = modifiers.rounding;
  if (modifiers.ftz) instruction.flags |= kCvtFtz;
  // .sat changes nothing: the result saturates without it as well.
  return WithInteger(instruction.type,
                     [&](auto to) -> Execute { return FloatToInteger<decltype(to)>; });
}

}  // namespace

Execute DecodeCvtInteger(Instruction& instruction, const CvtModifiers& modifiers) {
  if (modifiers.satfinite || modifiers.relu) return nullptr;
  if (IsFloat(instruction.from)) return DecodeFloatToInteger(instruction, modifiers);
  if (IsFloat(instruction.type)) return DecodeIntegerToFloat(instruction, modifiers);
  return DecodeIntegerToInteger(instruction, modifiers);
}

}  // namespace ptx
