// cvt to and from pairs of small floats, and to tf32.
#include <cmath>

#include "tests/model/ptx/arithmetic/conversion.h"
#include "tests/model/ptx/arithmetic/lanes.h"

namespace ptx {
namespace {

// Rounds to the bits of a smaller format.
using ToBits = uint32_t (*)(float value, Options options);

uint32_t ToF16Bits(float value, Options) { return F16OfFloat(value); }
uint32_t ToBF16Bits(float value, Options) { return BF16OfFloat(value); }

float Relu(float value) { return std::signbit(value) && value == value ? 0.0f : value; }

// With .relu, .satfinite and .rz, by the flags.
template <Type kType>
uint32_t ToHalfBits(float value, Options options) {
  constexpr float kLimit = kType == Type::kF16 ? 65504.0f : 0x1.fep127f;
  if (options.flags & kCvtRelu) value = Relu(value);
  if ((options.flags & kCvtSatfinite) && std::fabs(value) > kLimit) {
    value = std::copysign(kLimit, value);
  }
  const auto rounding = static_cast<Rounding>(options.flags >> kCvtRoundingShift);
  return static_cast<uint32_t>(BitsOfRounded(kType, value, rounding));
}
uint32_t ToE4M3Bits(float value, Options options) {
  return E4M3OfFloat(options.flags & kCvtRelu ? Relu(value) : value);
}
uint32_t ToE5M2Bits(float value, Options options) {
  return E5M2OfFloat(options.flags & kCvtRelu ? Relu(value) : value);
}

// d = {a, b}: a in the high half.
template <ToBits kToBits, typename Pair, int kShift>
Pair PackTwo(Options options, float a, float b) {
  return static_cast<Pair>(kToBits(a, options) << kShift | kToBits(b, options));
}
template <ToBits kToBits>
uint16_t PackHalves(Options options, uint32_t halves) {
  const float low = FloatOfF16(static_cast<uint16_t>(halves));
  const float high = FloatOfF16(static_cast<uint16_t>(halves >> 16));
  return static_cast<uint16_t>(kToBits(high, options) << 8 | kToBits(low, options));
}

template <float (*kFloatOf)(uint8_t)>
uint32_t UnpackBytes(Options options, uint16_t bytes) {
  float low = kFloatOf(static_cast<uint8_t>(bytes));
  float high = kFloatOf(static_cast<uint8_t>(bytes >> 8));
  if (options.flags & kCvtRelu) low = Relu(low), high = Relu(high);
  return F16OfFloat(low) | uint32_t{F16OfFloat(high)} << 16;
}

// ---- tf32: an f32 whose lowest 13 bits are zero

constexpr uint32_t kTF32Step = 0x2000, kTF32NaN = 0x7fffe000, kInfinityF32 = 0x7f800000;

uint32_t SizeToTF32(uint32_t size, int rounding) {
  switch (rounding) {
    case CvtModifiers::kRna: return (size + kTF32Step / 2) & ~(kTF32Step - 1);
    case CvtModifiers::kRz: return size & ~(kTF32Step - 1);
    default: return (size + kTF32Step / 2 - 1 + (size / kTF32Step & 1)) & ~(kTF32Step - 1);
  }
}
uint32_t ToTF32(Options options, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto rounding = static_cast<int>(options.flags >> kCvtRoundingShift);
  // ptxas folds .rna of a NaN to its upper bits.
  if (value != value) return rounding == CvtModifiers::kRna ? bits & ~(kTF32Step - 1) : kTF32NaN;
  if ((options.flags & kCvtRelu) && bits >> 31) return 0;
  uint32_t size = SizeToTF32(bits & 0x7fffffff, rounding);
  if ((options.flags & kCvtSatfinite) && size >= kInfinityF32) size = kInfinityF32 - kTF32Step;
  return size | (bits & 0x80000000);
}

Execute DecodeToTF32(Instruction& instruction, const CvtModifiers& modifiers) {
  if (instruction.from != Type::kF32 || modifiers.ftz || modifiers.sat) return nullptr;
  switch (modifiers.rounding) {
    case CvtModifiers::kRna:
      if (modifiers.relu) return nullptr;
      break;
    case CvtModifiers::kRn:
    case CvtModifiers::kRz: break;
    default: return nullptr;
  }
  return Map<&ToTF32>(instruction);
}

Execute DecodeToHalves(Instruction& instruction, const CvtModifiers& modifiers) {
  const bool f16 = instruction.type == Type::kF16x2;
  const int rounding = modifiers.rounding;
  if (instruction.from != Type::kF32) return nullptr;
  if (rounding != CvtModifiers::kRn && rounding != CvtModifiers::kRz) return nullptr;
  if (instruction.flags == 0) {
    return f16 ? Map<&PackTwo<ToF16Bits, uint32_t, 16>>(instruction)
               : Map<&PackTwo<ToBF16Bits, uint32_t, 16>>(instruction);
  }
  return f16 ? Map<&PackTwo<ToHalfBits<Type::kF16>, uint32_t, 16>>(instruction)
             : Map<&PackTwo<ToHalfBits<Type::kBF16>, uint32_t, 16>>(instruction);
}

Execute DecodeToBytes(Instruction& instruction, const CvtModifiers& modifiers) {
  if (modifiers.rounding != CvtModifiers::kRn || !modifiers.satfinite) return nullptr;
  const bool e4m3 = instruction.type == Type::kE4M3x2;
  if (instruction.from == Type::kF32) {
    return e4m3 ? Map<&PackTwo<ToE4M3Bits, uint16_t, 8>>(instruction)
                : Map<&PackTwo<ToE5M2Bits, uint16_t, 8>>(instruction);
  }
  if (instruction.from != Type::kF16x2) return nullptr;
  return e4m3 ? Map<&PackHalves<ToE4M3Bits>>(instruction)
              : Map<&PackHalves<ToE5M2Bits>>(instruction);
}

Execute DecodeFromBytes(Instruction& instruction, const CvtModifiers& modifiers) {
  if (modifiers.rounding != CvtModifiers::kRn || modifiers.satfinite) return nullptr;
  return instruction.from == Type::kE4M3x2 ? Map<&UnpackBytes<FloatOfE4M3>>(instruction)
                                           : Map<&UnpackBytes<FloatOfE5M2>>(instruction);
}

}  // namespace

Execute DecodeCvtPacked(Instruction& instruction, const CvtModifiers& modifiers) {
  if (modifiers.ftz || modifiers.sat || modifiers.rounding < 0) return nullptr;
  instruction.flags = static_cast<uint32_t>(modifiers.rounding) << kCvtRoundingShift;
  if (modifiers.satfinite) instruction.flags |= kCvtSatfinite;
  if (modifiers.relu) instruction.flags |= kCvtRelu;
  const bool from_bytes = instruction.from == Type::kE4M3x2 || instruction.from == Type::kE5M2x2;
  switch (instruction.type) {
    case Type::kTF32: return DecodeToTF32(instruction, modifiers);
    case Type::kE4M3x2:
    case Type::kE5M2x2: return DecodeToBytes(instruction, modifiers);
    case Type::kF16x2:
      if (from_bytes) return DecodeFromBytes(instruction, modifiers);
      return DecodeToHalves(instruction, modifiers);
    case Type::kBF16x2: return DecodeToHalves(instruction, modifiers);
    default: return nullptr;
  }
}

}  // namespace ptx
