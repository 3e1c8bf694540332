// Integer arithmetic. Sums and products are computed with 64 unsigned bits, which wrap around
// without undefined behaviour, and cut to the type.
#include <limits>

#include "tests/model/ptx/arithmetic/arithmetic.h"
#include "tests/model/ptx/arithmetic/lanes.h"

namespace ptx {
namespace {

template <typename T>
struct Add {
  static T Run(T a, T b) { return static_cast<T>(uint64_t(a) + uint64_t(b)); }
};
template <typename T>
struct Sub {
  static T Run(T a, T b) { return static_cast<T>(uint64_t(a) - uint64_t(b)); }
};
template <typename T>
struct Min {
  static T Run(T a, T b) { return a < b ? a : b; }
};
template <typename T>
struct Max {
  static T Run(T a, T b) { return a < b ? b : a; }
};
template <typename T>
struct Neg {
  static T Run(T a) { return Sub<T>::Run(0, a); }
};
template <typename T>
struct Abs {
  static T Run(T a) { return a < 0 ? Neg<T>::Run(a) : a; }
};
template <template <typename> class Function>
struct ReluOf {
  template <typename T>
  struct Type {
    static T Run(T a, T b) { return Max<T>::Run(Function<T>::Run(a, b), 0); }
  };
};

int32_t Saturate(int64_t value) {
  constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  return static_cast<int32_t>(value < kMin ? kMin : value > kMax ? kMax : value);
}
int32_t AddSaturating(int32_t a, int32_t b) { return Saturate(int64_t{a} + b); }
int32_t SubSaturating(int32_t a, int32_t b) { return Saturate(int64_t{a} - b); }

template <typename T>
struct MulLo {
  static T Run(T a, T b) { return static_cast<T>(uint64_t(a) * uint64_t(b)); }
};
template <typename T>
struct MulHi {
  using Signed = std::conditional_t<sizeof(T) == 8, __int128, int64_t>;
  using Unsigned = std::conditional_t<sizeof(T) == 8, unsigned __int128, uint64_t>;
  using Product = std::conditional_t<std::is_signed_v<T>, Signed, Unsigned>;
  static T Run(T a, T b) { return static_cast<T>(Product{a} * Product{b} >> sizeof(T) * 8); }
};
// The type with twice the bits.
template <typename T>
using Wider =
    std::conditional_t<sizeof(T) == 4, std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>,
                       std::conditional_t<std::is_signed_v<T>, int32_t, uint32_t>>;
template <typename T>
struct MulWide {
  static Wider<T> Run(T a, T b) { return static_cast<Wider<T>>(uint64_t(a) * uint64_t(b)); }
};

template <typename T>
struct MadLo {
  static T Run(T a, T b, T c) { return Add<T>::Run(MulLo<T>::Run(a, b), c); }
};
template <typename T>
struct MadHi {
  static T Run(T a, T b, T c) { return Add<T>::Run(MulHi<T>::Run(a, b), c); }
};
template <typename T>
struct MadWide {
  static Wider<T> Run(T a, T b, Wider<T> c) { return Add<Wider<T>>::Run(MulWide<T>::Run(a, b), c); }
};
int32_t MadHiSaturating(int32_t a, int32_t b, int32_t c) {
  return Saturate(int64_t{MulHi<int32_t>::Run(a, b)} + c);
}

// The ISA leaves division by zero unspecified. The code that ptxas emits gives all ones, for the
// remainder as well.
template <typename T>
struct Div {
  static T Run(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return Sub<T>::Run(0, a);
    return static_cast<T>(a / b);
  }
};
template <typename T>
struct Rem {
  static T Run(T a, T b) {
    if (b == 0) return static_cast<T>(~T{0});
    if (std::is_signed_v<T> && b == static_cast<T>(-1)) return 0;
    return static_cast<T>(a % b);
  }
};

template <typename T>
struct Sad {
  static T Run(T a, T b, T c) {
    return Add<T>::Run(a < b ? Sub<T>::Run(b, a) : Sub<T>::Run(a, b), c);
  }
};

// Both halves of a word.
template <template <typename> class Function>
struct PairOf {
  template <typename T>
  struct Type {
    static uint32_t Run(uint32_t a, uint32_t b) {
      const auto low = Function<T>::Run(static_cast<T>(a), static_cast<T>(b));
      const auto high = Function<T>::Run(static_cast<T>(a >> 16), static_cast<T>(b >> 16));
      return static_cast<uint16_t>(low) | uint32_t{static_cast<uint16_t>(high)} << 16;
    }
  };
};

Execute DecodeAdd(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("cc")) return DecodeCarryOut(instruction, modifiers);
  if (!modifiers.Take("sat")) return MapIntegers<Add>(instruction);
  return instruction.type == Type::kS32 ? Map<&AddSaturating>(instruction) : nullptr;
}

Execute DecodeSub(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("cc")) return DecodeCarryOut(instruction, modifiers);
  if (!modifiers.Take("sat")) return MapIntegers<Sub>(instruction);
  return instruction.type == Type::kS32 ? Map<&SubSaturating>(instruction) : nullptr;
}

// Function<T>::Run for the types that have a wider one.
template <template <typename> class Function>
Execute MapWide(const Instruction& instruction) {
  switch (instruction.type) {
    case Type::kU16: return Map<&Function<uint16_t>::Run>(instruction);
    case Type::kS16: return Map<&Function<int16_t>::Run>(instruction);
    case Type::kU32: return Map<&Function<uint32_t>::Run>(instruction);
    case Type::kS32: return Map<&Function<int32_t>::Run>(instruction);
    default: return nullptr;
  }
}

Execute DecodeMul(Instruction& instruction, Modifiers& modifiers) {
  switch (modifiers.TakeOneOf({"lo", "hi", "wide"})) {
    case 0: return MapIntegers<MulLo>(instruction);
    case 1: return MapIntegers<MulHi>(instruction);
    case 2: return MapWide<MulWide>(instruction);
    default: return nullptr;
  }
}

Execute DecodeMad(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("cc")) return DecodeCarryOut(instruction, modifiers);
  switch (modifiers.TakeOneOf({"lo", "hi", "wide"})) {
    case 0: return MapIntegers<MadLo>(instruction);
    case 1:
      if (!modifiers.Take("sat")) return MapIntegers<MadHi>(instruction);
      return instruction.type == Type::kS32 ? Map<&MadHiSaturating>(instruction) : nullptr;
    case 2: return MapWide<MadWide>(instruction);
    default: return nullptr;
  }
}

template <template <typename> class Function>
Execute DecodePlain(Instruction& instruction, Modifiers&) {
  return MapIntegers<Function>(instruction);
}
template <template <typename> class Function>
Execute DecodeSigned(Instruction& instruction, Modifiers&) {
  return MapSigned<Function>(instruction);
}
template <template <typename> class Function>
Execute DecodeExtremum(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("relu")) return MapIntegers<Function>(instruction);
  using Relu = typename ReluOf<Function>::template Type<int32_t>;
  return instruction.type == Type::kS32 ? Map<&Relu::Run>(instruction) : nullptr;
}

template <template <typename> class Function>
Execute MapPair(const Instruction& instruction) {
  using Unsigned = typename PairOf<Function>::template Type<uint16_t>;
  using Signed = typename PairOf<Function>::template Type<int16_t>;
  return IsSigned(instruction.type) ? Map<&Signed::Run>(instruction)
                                    : Map<&Unsigned::Run>(instruction);
}
Execute DecodePairAdd(Instruction& instruction, Modifiers&) { return MapPair<Add>(instruction); }
template <template <typename> class Function>
Execute DecodePairExtremum(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("relu")) return MapPair<Function>(instruction);
  if (!IsSigned(instruction.type)) return nullptr;
  return MapPair<ReluOf<Function>::template Type>(instruction);
}

}  // namespace

const DecoderTable& IntegerDecoders() {
  static const DecoderTable decoders = {
      {"add", DecodeAdd},           {"sub", DecodeSub},           {"mul", DecodeMul},
      {"mad", DecodeMad},           {"div", DecodePlain<Div>},    {"rem", DecodePlain<Rem>},
      {"sad", DecodePlain<Sad>},    {"neg", DecodeSigned<Neg>},   {"abs", DecodeSigned<Abs>},
      {"min", DecodeExtremum<Min>}, {"max", DecodeExtremum<Max>},
  };
  return decoders;
}

const DecoderTable& IntegerPairDecoders() {
  static const DecoderTable decoders = {
      {"add", DecodePairAdd},
      {"min", DecodePairExtremum<Min>},
      {"max", DecodePairExtremum<Max>},
  };
  return decoders;
}

}  // namespace ptx
