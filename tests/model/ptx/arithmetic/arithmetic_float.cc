// Arithmetic of f32 and f64.
//
// Approximate instructions (.approx, .full) give the correctly rounded result, because the bits of
// the GPU's tables are unknown. ptxas may contract mul and add without a rounding to fma; the model
// does not.
#include <cmath>

#include "tests/model/ptx/arithmetic/arithmetic.h"
#include "tests/model/ptx/arithmetic/lanes.h"
#include "tests/model/ptx/arithmetic/rounding.h"

namespace ptx {
namespace {

// Instruction::flags.
enum Flags : uint32_t {
  kFtz = 1,
  kSat = 2,
  kNaN = 4,
  kXorSign = 8,
  kRoundingShift = 8,  // a Rounding from this bit on
};

// ---- Operations. Nearest rounds to nearest. Odd rounds to odd, before a rounding to f32.

struct Add {
  template <typename T>
  static T Nearest(T a, T b) {
    return a + b;
  }
  static double Odd(Rounding rounding, float a, float b) { return AddToOdd(a, b, rounding); }
};
struct Sub {
  template <typename T>
  static T Nearest(T a, T b) {
    return a - b;
  }
  static double Odd(Rounding rounding, float a, float b) { return AddToOdd(a, -b, rounding); }
};
struct Mul {
  template <typename T>
  static T Nearest(T a, T b) {
    return a * b;
  }
  static double Odd(Rounding, float a, float b) { return double{a} * b; }  // exact
};
struct Fma {
  template <typename T>
  static T Nearest(T a, T b, T c) {
    return std::fma(a, b, c);
  }
  static double Odd(Rounding rounding, float a, float b, float c) {
    return AddToOdd(double{a} * b, c, rounding);
  }
};
struct Div {
  template <typename T>
  static T Nearest(T a, T b) {
    return a / b;
  }
  static double Odd(Rounding, float a, float b) { return DivideToOdd(a, b); }
};
struct Rcp {
  template <typename T>
  static T Nearest(T a) {
    return T{1} / a;
  }
  static double Odd(Rounding, float a) { return DivideToOdd(1, a); }
};
struct Sqrt {
  template <typename T>
  static T Nearest(T a) {
    return std::sqrt(a);
  }
  static double Odd(Rounding, float a) { return RootToOdd(a); }
};

template <typename Operation, typename... Floats>
struct Rounded {
  static float Plain(Floats... values) { return Canonical(Operation::Nearest(values...)); }
  static float Flushed(Floats... values) {
    return Flush(Canonical(Operation::Nearest(Flush(values)...)));
  }
  static float General(Options options, Floats... values) {
    const bool ftz = options.flags & kFtz;
    const auto rounding = static_cast<Rounding>(options.flags >> kRoundingShift);
    const double odd =
        ftz ? Operation::Odd(rounding, Flush(values)...) : Operation::Odd(rounding, values...);
    float result = Canonical(RoundToF32(odd, rounding));
    if (options.flags & kSat) result = Saturate(result);
    return ftz ? Flush(result) : result;
  }
};

// Takes .ftz and the rounding into flags. Returns true if there was a rounding.
bool TakeRounding(Instruction& instruction, Modifiers& modifiers) {
  const int rounding = modifiers.TakeOneOf({"rn", "rz", "rm", "rp"});
  if (modifiers.Take("ftz")) instruction.flags |= kFtz;
  if (rounding > 0) instruction.flags |= static_cast<uint32_t>(rounding) << kRoundingShift;
  return rounding >= 0;
}

template <typename Operation, typename... Doubles>
double RunDouble(Doubles... values) {
  return Operation::Nearest(values...);
}

template <typename Operation, size_t... kIndex>
Execute MapRounded(const Instruction& instruction, std::index_sequence<kIndex...>) {
  if (instruction.type == Type::kF64) {
    // A directed rounding would need the sign of an error that f64 may not be able to hold.
    if (instruction.flags != 0) return nullptr;
    return Map<&RunDouble<Operation, Repeat<double, kIndex>...>>(instruction);
  }
  using Function = Rounded<Operation, Repeat<float, kIndex>...>;
  switch (instruction.flags) {
    case 0: return Map<&Function::Plain>(instruction);
    case kFtz: return Map<&Function::Flushed>(instruction);
    default: return Map<&Function::General>(instruction);
  }
}

template <typename Operation>
Execute DecodeSum(Instruction& instruction, Modifiers& modifiers) {
  TakeRounding(instruction, modifiers);
  if (modifiers.Take("sat")) instruction.flags |= kSat;
  return MapRounded<Operation>(instruction, std::make_index_sequence<2>{});
}
Execute DecodeFma(Instruction& instruction, Modifiers& modifiers) {
  if (!TakeRounding(instruction, modifiers)) return nullptr;
  if (modifiers.Take("sat")) instruction.flags |= kSat;
  return MapRounded<Fma>(instruction, std::make_index_sequence<3>{});
}

// ---- Approximate functions, computed in f64 and rounded to f32

template <double (*kFunction)(double)>
struct Approximate {
  static float Plain(float value) { return Canonical(static_cast<float>(kFunction(value))); }
  static float Flushed(float value) { return Flush(Plain(Flush(value))); }
};
double UpperWord(double value) {
  return std::bit_cast<double>(std::bit_cast<uint64_t>(value) & 0xffffffff00000000);
}
// rcp.approx.ftz.f64 and rsqrt.approx.ftz.f64 use, and give, the upper 32 bits of a number.
template <double (*kFunction)(double)>
double ApproximateUpperWord(double value) {
  return Flush(UpperWord(kFunction(Flush(UpperWord(value)))));
}

// .approx is taken.
template <double (*kFunction)(double)>
Execute MapApproximate(const Instruction& instruction, Modifiers& modifiers) {
  const bool ftz = modifiers.Take("ftz");
  if (instruction.type != Type::kF32) {
    const auto& name = instruction.opcode[0];
    if (!ftz || (name != "rcp" && name != "rsqrt")) return nullptr;
    return Map<&ApproximateUpperWord<kFunction>>(instruction);
  }
  return ftz ? Map<&Approximate<kFunction>::Flushed>(instruction)
             : Map<&Approximate<kFunction>::Plain>(instruction);
}
template <double (*kFunction)(double)>
Execute DecodeApproximate(Instruction& instruction, Modifiers& modifiers) {
  return modifiers.Take("approx") ? MapApproximate<kFunction>(instruction, modifiers) : nullptr;
}

double Reciprocal(double value) { return 1 / value; }
double SquareRoot(double value) { return std::sqrt(value); }
double ReciprocalRoot(double value) { return 1 / std::sqrt(value); }
double Sine(double value) { return std::sin(value); }
double Cosine(double value) { return std::cos(value); }
double Logarithm(double value) { return std::log2(value); }
double Power(double value) { return std::exp2(value); }
double HyperbolicTangent(double value) { return std::tanh(value); }

// rcp and sqrt: .approx or a rounding.
template <typename Operation, double (*kFunction)(double)>
Execute DecodeUnary(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("approx")) return MapApproximate<kFunction>(instruction, modifiers);
  if (!TakeRounding(instruction, modifiers)) return nullptr;
  return MapRounded<Operation>(instruction, std::index_sequence<0>{});
}

// The ISA: for a divisor above 2^126 the result is zero, or NaN if the dividend is infinite.
float DivideApproximately(float a, float b) {
  const float size = std::fabs(b);
  if (size > 0x1p126f && std::isfinite(b)) {
    return std::isinf(a) ? std::bit_cast<float>(kNanF32) : std::copysign(0.0f, a) * b;
  }
  return Canonical(a / b);
}
float DivideApproximatelyFlushed(float a, float b) {
  return Flush(DivideApproximately(Flush(a), Flush(b)));
}

Execute DecodeDiv(Instruction& instruction, Modifiers& modifiers) {
  if (TakeRounding(instruction, modifiers)) {
    return MapRounded<Div>(instruction, std::make_index_sequence<2>{});
  }
  if (instruction.type != Type::kF32) return nullptr;
  if (modifiers.Take("full")) return MapRounded<Div>(instruction, std::make_index_sequence<2>{});
  if (!modifiers.Take("approx")) return nullptr;
  return instruction.flags & kFtz ? Map<&DivideApproximatelyFlushed>(instruction)
                                  : Map<&DivideApproximately>(instruction);
}

// ---- neg, abs, copysign, min, max

template <typename T>
struct Neg {
  static T Run(T value) { return -value; }
};
template <typename T>
struct Abs {
  static T Run(T value) { return std::fabs(value); }
};
template <typename T>
struct CopySign {
  static T Run(T sign, T value) { return std::copysign(value, sign); }
};
template <template <typename> class Function>
float RunFlushed(float value) {
  return Function<float>::Run(Flush(value));
}

template <template <typename> class Function>
Execute MapFloats(const Instruction& instruction) {
  return instruction.type == Type::kF32 ? Map<&Function<float>::Run>(instruction)
                                        : Map<&Function<double>::Run>(instruction);
}
template <template <typename> class Function>
Execute DecodeSign(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("ftz")) return MapFloats<Function>(instruction);
  return instruction.type == Type::kF32 ? Map<&RunFlushed<Function>>(instruction) : nullptr;
}
Execute DecodeCopySign(Instruction& instruction, Modifiers&) {
  return MapFloats<CopySign>(instruction);
}

// The lesser one, or the greater one. -0 is less than +0; a number wins over a NaN.
template <bool kMax, typename T>
T Extremum(T a, T b) {
  const bool a_less = a < b || (a == b && std::signbit(a));
  const T chosen = a_less != kMax ? a : b;
  return Canonical(a != a ? b : b != b ? a : chosen);
}
template <bool kMax>
struct ExtremumOf {
  template <typename T>
  struct Type {
    static T Run(T a, T b) { return Extremum<kMax>(a, b); }
  };
  static float Flushed(float a, float b) { return Extremum<kMax>(Flush(a), Flush(b)); }
  static float General(Options options, float a, float b) {
    if (options.flags & kFtz) a = Flush(a), b = Flush(b);
    if ((options.flags & kNaN) && (a != a || b != b)) return std::bit_cast<float>(kNanF32);
    if (!(options.flags & kXorSign)) return Extremum<kMax>(a, b);
    const float size = Extremum<kMax>(std::fabs(a), std::fabs(b));
    return size != size || std::signbit(a) == std::signbit(b) ? size : -size;
  }
};

template <bool kMax>
Execute DecodeExtremum(Instruction& instruction, Modifiers& modifiers) {
  using Function = ExtremumOf<kMax>;
  if (modifiers.Take("ftz")) instruction.flags |= kFtz;
  if (modifiers.Take("NaN")) instruction.flags |= kNaN;
  if (modifiers.Take("xorsign")) {
    if (!modifiers.Take("abs")) return nullptr;
    instruction.flags |= kXorSign;
  }
  if (instruction.flags == 0) return MapFloats<Function::template Type>(instruction);
  if (instruction.type != Type::kF32) return nullptr;
  return instruction.flags == kFtz ? Map<&Function::Flushed>(instruction)
                                   : Map<&Function::General>(instruction);
}

}  // namespace

const DecoderTable& FloatDecoders() {
  static const DecoderTable decoders = {
      {"add", DecodeSum<Add>},
      {"sub", DecodeSum<Sub>},
      {"mul", DecodeSum<Mul>},
      {"fma", DecodeFma},
      {"mad", DecodeFma},
      {"div", DecodeDiv},
      {"rcp", DecodeUnary<Rcp, Reciprocal>},
      {"sqrt", DecodeUnary<Sqrt, SquareRoot>},
      {"rsqrt", DecodeApproximate<ReciprocalRoot>},
      {"sin", DecodeApproximate<Sine>},
      {"cos", DecodeApproximate<Cosine>},
      {"lg2", DecodeApproximate<Logarithm>},
      {"ex2", DecodeApproximate<Power>},
      {"tanh", DecodeApproximate<HyperbolicTangent>},
      {"neg", DecodeSign<Neg>},
      {"abs", DecodeSign<Abs>},
      {"copysign", DecodeCopySign},
      {"min", DecodeExtremum<false>},
      {"max", DecodeExtremum<true>},
  };
  return decoders;
}

}  // namespace ptx
