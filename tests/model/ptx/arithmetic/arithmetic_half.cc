// Arithmetic of f16 and bf16, and of two of them in a word.
//
// Sums and products of two numbers are computed in f32. Because it has more than twice their bits,
// the two roundings give the same as one. Approximate instructions give the correctly rounded
// result, because the bits of the GPU's tables are unknown.
#include <cmath>

#include "tests/model/ptx/arithmetic/arithmetic.h"
#include "tests/model/ptx/arithmetic/lanes.h"
#include "tests/model/ptx/arithmetic/rounding.h"

namespace ptx {
namespace {

// Instruction::flags.
enum Flags : uint32_t { kFtz = 1, kSat = 2, kRelu = 4 };

struct Add {
  template <typename Half>
  static Half Run(Half a, Half b) {
    return Half::Of(FloatOf(a) + FloatOf(b));
  }
};
struct Sub {
  template <typename Half>
  static Half Run(Half a, Half b) {
    return Half::Of(FloatOf(a) - FloatOf(b));
  }
};
struct Mul {
  template <typename Half>
  static Half Run(Half a, Half b) {
    return Half::Of(FloatOf(a) * FloatOf(b));
  }
};
struct Fma {
  template <typename Half>
  static Half Run(Half a, Half b, Half c) {
    return Half::Of(AddToOdd(double{FloatOf(a)} * FloatOf(b), FloatOf(c)));
  }
};
struct Neg {
  template <typename Half>
  static Half Run(Half a) {
    return {static_cast<uint16_t>(a.bits ^ 0x8000)};
  }
};
struct Abs {
  template <typename Half>
  static Half Run(Half a) {
    return {static_cast<uint16_t>(a.bits & 0x7fff)};
  }
};
struct Power {
  template <typename Half>
  static Half Run(Half a) {
    return Half::Of(std::exp2(double{FloatOf(a)}));
  }
};
struct HyperbolicTangent {
  template <typename Half>
  static Half Run(Half a) {
    return Half::Of(std::tanh(double{FloatOf(a)}));
  }
};

// The lesser one, or the greater one. -0 is less than +0; a number wins over a NaN.
template <bool kMax>
struct Extremum {
  template <typename Half>
  static Half Run(Half a, Half b) {
    const float x = FloatOf(a), y = FloatOf(b);
    const bool a_less = x < y || (x == y && std::signbit(x));
    const Half chosen = a_less != kMax ? a : b;
    const Half number = x != x ? b : y != y ? a : chosen;
    return x != x && y != y ? Half::Of(x) : number;
  }
};
template <bool kMax>
struct ExtremumOfSizes {
  template <typename Half>
  static Half Run(Half a, Half b) {
    const auto sign = static_cast<uint16_t>((a.bits ^ b.bits) & 0x8000);
    const Half size = Extremum<kMax>::Run(Abs::Run(a), Abs::Run(b));
    const float value = FloatOf(size);
    return value != value ? size : Half{static_cast<uint16_t>(size.bits | sign)};
  }
};
// A NaN wins over a number.
template <typename Operation>
struct OrNaN {
  template <typename Half>
  static Half Run(Half a, Half b) {
    const float sum = FloatOf(a) + FloatOf(b), x = FloatOf(a), y = FloatOf(b);
    return x != x || y != y ? Half::Of(sum) : Operation::Run(a, b);
  }
};

template <typename Half>
Half Finish(Options options, Half result) {
  const float value = FloatOf(result);
  if (options.flags & kSat) result = Half::Of(Saturate(value));
  if ((options.flags & kRelu) && value == value && (result.bits & 0x8000)) result.bits = 0;
  return options.flags & kFtz ? Flush(result) : result;
}

template <typename Operation, typename Half, size_t... kIndex>
struct Functions {
  static Half One(Repeat<Half, kIndex>... values) { return Operation::Run(values...); }
  static Half OneGeneral(Options options, Repeat<Half, kIndex>... values) {
    const bool ftz = options.flags & kFtz;
    return Finish(options, ftz ? Operation::Run(Flush(values)...) : Operation::Run(values...));
  }
  static uint32_t Two(Repeat<uint32_t, kIndex>... words) {
    return Pack(One(Low(words)...), One(High(words)...));
  }
  static uint32_t TwoGeneral(Options options, Repeat<uint32_t, kIndex>... words) {
    return Pack(OneGeneral(options, Low(words)...), OneGeneral(options, High(words)...));
  }

 private:
  static Half Low(uint32_t word) { return {static_cast<uint16_t>(word)}; }
  static Half High(uint32_t word) { return {static_cast<uint16_t>(word >> 16)}; }
  static uint32_t Pack(Half low, Half high) { return low.bits | uint32_t{high.bits} << 16; }
};

bool IsBF16(Type type) { return type == Type::kBF16 || type == Type::kBF16x2; }

template <typename Operation, size_t... kIndex>
Execute MapHalves(const Instruction& instruction, std::index_sequence<kIndex...>) {
  using OfF16 = Functions<Operation, F16, kIndex...>;
  using OfBF16 = Functions<Operation, BF16, kIndex...>;
  const bool plain = instruction.flags == 0;
  switch (instruction.type) {
    case Type::kF16:
      return plain ? Map<&OfF16::One>(instruction) : Map<&OfF16::OneGeneral>(instruction);
    case Type::kBF16:
      return plain ? Map<&OfBF16::One>(instruction) : Map<&OfBF16::OneGeneral>(instruction);
    case Type::kF16x2:
      return plain ? Map<&OfF16::Two>(instruction) : Map<&OfF16::TwoGeneral>(instruction);
    case Type::kBF16x2:
      return plain ? Map<&OfBF16::Two>(instruction) : Map<&OfBF16::TwoGeneral>(instruction);
    default: return nullptr;
  }
}

void TakeFlag(Instruction& instruction, Modifiers& modifiers, std::string_view part, Flags flag) {
  if (modifiers.Take(part)) instruction.flags |= flag;
}

template <typename Operation>
Execute DecodeSum(Instruction& instruction, Modifiers& modifiers) {
  modifiers.Take("rn");
  if (!IsBF16(instruction.type)) {
    TakeFlag(instruction, modifiers, "ftz", kFtz);
    TakeFlag(instruction, modifiers, "sat", kSat);
  }
  return MapHalves<Operation>(instruction, std::make_index_sequence<2>{});
}

Execute DecodeFma(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("rn")) return nullptr;
  TakeFlag(instruction, modifiers, "relu", kRelu);
  if (!IsBF16(instruction.type)) {
    TakeFlag(instruction, modifiers, "ftz", kFtz);
    if (!(instruction.flags & kRelu)) TakeFlag(instruction, modifiers, "sat", kSat);
  }
  return MapHalves<Fma>(instruction, std::make_index_sequence<3>{});
}

template <typename Operation>
Execute DecodeSign(Instruction& instruction, Modifiers& modifiers) {
  if (!IsBF16(instruction.type)) TakeFlag(instruction, modifiers, "ftz", kFtz);
  return MapHalves<Operation>(instruction, std::index_sequence<0>{});
}

Execute DecodePower(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("approx")) return nullptr;
  if (IsBF16(instruction.type)) TakeFlag(instruction, modifiers, "ftz", kFtz);
  return MapHalves<Power>(instruction, std::index_sequence<0>{});
}
Execute DecodeTangent(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("approx")) return nullptr;
  return MapHalves<HyperbolicTangent>(instruction, std::index_sequence<0>{});
}

template <bool kMax>
Execute DecodeExtremum(Instruction& instruction, Modifiers& modifiers) {
  constexpr auto kSources = std::make_index_sequence<2>{};
  if (!IsBF16(instruction.type)) TakeFlag(instruction, modifiers, "ftz", kFtz);
  const bool nan = modifiers.Take("NaN");
  if (!modifiers.Take("xorsign")) {
    return nan ? MapHalves<OrNaN<Extremum<kMax>>>(instruction, kSources)
               : MapHalves<Extremum<kMax>>(instruction, kSources);
  }
  if (!modifiers.Take("abs")) return nullptr;
  return nan ? MapHalves<OrNaN<ExtremumOfSizes<kMax>>>(instruction, kSources)
             : MapHalves<ExtremumOfSizes<kMax>>(instruction, kSources);
}

}  // namespace

const DecoderTable& HalfDecoders() {
  static const DecoderTable decoders = {
      {"add", DecodeSum<Add>},        {"sub", DecodeSum<Sub>},
      {"mul", DecodeSum<Mul>},        {"fma", DecodeFma},
      {"neg", DecodeSign<Neg>},       {"abs", DecodeSign<Abs>},
      {"min", DecodeExtremum<false>}, {"max", DecodeExtremum<true>},
      {"ex2", DecodePower},           {"tanh", DecodeTangent},
  };
  return decoders;
}

}  // namespace ptx
