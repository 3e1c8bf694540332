// The parts of cvt. Sources and targets may be registers that are wider than their types.
#pragma once

#include "tests/model/ptx/arithmetic/rounding.h"
#include "tests/model/ptx/program/decode.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {

// The modifiers of a cvt that are not types.
struct CvtModifiers {
  enum Rounding { kNone = -1, kRn, kRz, kRm, kRp, kRni, kRzi, kRmi, kRpi, kRna };
  int rounding = kNone;
  bool ftz = false, sat = false, satfinite = false, relu = false;
};
// Instruction::flags of the conversions that look at them as they run; a Rounding lies from
// kCvtRoundingShift on.
enum CvtFlags : uint32_t { kCvtFtz = 1, kCvtSat = 2, kCvtSatfinite = 4, kCvtRelu = 8 };
constexpr int kCvtRoundingShift = 8;

// instruction.type and instruction.from are set. Null if the form is another one.
// f16x2, bf16x2, e4m3x2, e5m2x2 and tf32. conversion_packed.cc
Execute DecodeCvtPacked(Instruction& instruction, const CvtModifiers& modifiers);
// From and to an integer. conversion_integer.cc
Execute DecodeCvtInteger(Instruction& instruction, const CvtModifiers& modifiers);
// Between f16, bf16, f32 and f64. conversion_float.cc
Execute DecodeCvtFloat(Instruction& instruction, const CvtModifiers& modifiers);

// Return true if a target or a source fits the type: a register of the same size or a wider one,
// for a source also a special register or a literal.
bool FitsCvtTarget(const Operand& operand, Type type);
bool FitsCvtSource(const Operand& operand, Type type);

// The lanes of a source, in its type; `own` is used if that is not the form in which the operand
// has them.
const Lanes& CvtSource(const Warp& warp, const Operand& operand, Type type, Lanes& own);

// A number of a floating-point type, exactly.
double ValueOf(Type type, uint64_t bits);
// Rounds a number to f16, bf16, f32 or f64. The latter takes it as it is.
uint64_t BitsOfRounded(Type type, double value, Rounding rounding);

}  // namespace ptx
