// cvt between f16, bf16, f32 and f64.
#include <cmath>

#include "tests/model/ptx/arithmetic/conversion.h"
#include "tests/model/ptx/arithmetic/lanes.h"

namespace ptx {
namespace {

// ---- The usual conversions, of all lanes in a simple loop

template <auto kFunction, typename From>
Outcome Convert(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  Lanes own;
  const Lanes& source = CvtSource(warp, operands[1], instruction.from, own);
  Lanes& target = Target(warp, operands[0]);
  EachLane(mask, [&](int lane) { target[lane] = Bits(kFunction(As<From>(source[lane]))); });
  return Outcome::kNext;
}

double Widen(float value) { return value; }
float Narrow(double value) { return static_cast<float>(value); }

Execute UsualConversion(Type type, Type from) {
  if (type == Type::kF16 && from == Type::kF32) return Convert<&F16OfFloat, float>;
  if (type == Type::kBF16 && from == Type::kF32) return Convert<&BF16OfFloat, float>;
  if (type == Type::kF32 && from == Type::kF16) return Convert<&FloatOfF16, uint16_t>;
  if (type == Type::kF32 && from == Type::kBF16) return Convert<&FloatOfBF16, uint16_t>;
  if (type == Type::kF64 && from == Type::kF32) return Convert<&Widen, float>;
  if (type == Type::kF32 && from == Type::kF64) return Convert<&Narrow, double>;
  return nullptr;
}

// ---- All of them, with all modifiers

double RoundToWhole(double value, int rounding) {
  switch (rounding) {
    case CvtModifiers::kRni: return std::nearbyint(value);
    case CvtModifiers::kRzi: return std::trunc(value);
    case CvtModifiers::kRmi: return std::floor(value);
    case CvtModifiers::kRpi: return std::ceil(value);
    default: return value;
  }
}

// The greatest finite numbers.
constexpr double kMaxF16 = 65504, kMaxBF16 = 0x1.fep127;

double ToFinite(Type type, double value) {
  const double limit = type == Type::kF16 ? kMaxF16 : kMaxBF16;
  return std::fabs(value) > limit ? std::copysign(limit, value) : value;
}

Outcome ConvertGeneral(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  const uint32_t flags = instruction.flags;
  const Type type = instruction.type, from = instruction.from;
  const int rounding = instruction.variant;
  const auto direction = static_cast<Rounding>(
      rounding >= CvtModifiers::kRn && rounding <= CvtModifiers::kRp ? rounding : 0);
  const bool flush_source = (flags & kCvtFtz) && from == Type::kF32;
  Lanes own;
  const Lanes& source = CvtSource(warp, operands[1], from, own);
  Lanes& target = Target(warp, operands[0]);
  ForLanes(mask, [&](int lane) {
    double value = ValueOf(from, source[lane]);
    if (flush_source) value = Flush(static_cast<float>(value));
    value = RoundToWhole(value, rounding);
    if (flags & kCvtSat) value = Saturate(value);
    if ((flags & kCvtRelu) && std::signbit(value) && value == value) value = 0;
    if (flags & kCvtSatfinite) value = ToFinite(type, value);
    uint64_t bits = BitsOfRounded(type, value, direction);
    if ((flags & kCvtFtz) && type == Type::kF32) bits = Bits(Flush(As<float>(bits)));
    target[lane] = bits;
  });
  return Outcome::kNext;
}

// Bits of the mantissa and of the exponent.
struct Format {
  int mantissa, exponent;
};
Format FormatOf(Type type) {
  switch (type) {
    case Type::kF16: return {10, 5};
    case Type::kBF16: return {7, 8};
    case Type::kF32: return {23, 8};
    default: return {52, 11};
  }
}
bool LosesPrecision(Type type, Type from) {
  const Format to = FormatOf(type), of = FormatOf(from);
  return to.mantissa < of.mantissa || to.exponent < of.exponent;
}

bool AreAllowed(const Instruction& instruction, const CvtModifiers& modifiers) {
  const Type type = instruction.type, from = instruction.from;
  const int rounding = modifiers.rounding;
  if (LosesPrecision(type, from)) {
    if (rounding < CvtModifiers::kRn || rounding > CvtModifiers::kRp) return false;
  } else if (rounding != CvtModifiers::kNone) {
    // Between equal types: to a whole number.
    if (type != from || rounding < CvtModifiers::kRni || rounding > CvtModifiers::kRpi)
      return false;
  }
  if (modifiers.ftz && type != Type::kF32 && from != Type::kF32) return false;
  if (modifiers.relu || modifiers.satfinite) {
    if (from != Type::kF32 || (type != Type::kF16 && type != Type::kBF16)) return false;
    if (modifiers.sat || modifiers.ftz || rounding > CvtModifiers::kRz) return false;
  }
  return !(modifiers.sat && type == Type::kBF16);
}

}  // namespace

Execute DecodeCvtFloat(Instruction& instruction, const CvtModifiers& modifiers) {
  if (!AreAllowed(instruction, modifiers)) return nullptr;
  if (modifiers.ftz) instruction.flags |= kCvtFtz;
  if (modifiers.sat) instruction.flags |= kCvtSat;
  if (modifiers.satfinite) instruction.flags |= kCvtSatfinite;
  if (modifiers.relu) instruction.flags |= kCvtRelu;
  instruction.variant = modifiers.rounding;
  if (instruction.flags == 0 && modifiers.rounding <= CvtModifiers::kRn) {
    if (const auto usual = UsualConversion(instruction.type, instruction.from)) return usual;
  }
  return ConvertGeneral;
}

double ValueOf(Type type, uint64_t bits) {
  switch (type) {
    case Type::kF16: return FloatOfF16(static_cast<uint16_t>(bits));
    case Type::kBF16: return FloatOfBF16(static_cast<uint16_t>(bits));
    case Type::kF32: return As<float>(bits);
    default: return As<double>(bits);
  }
}

uint64_t BitsOfRounded(Type type, double value, Rounding rounding) {
  switch (type) {
    case Type::kF16: return RoundToF16(value, rounding);
    case Type::kBF16: return RoundToBF16(value, rounding);
    case Type::kF32: return Bits(RoundToF32(value, rounding));
    default: return Bits(value);
  }
}

}  // namespace ptx
