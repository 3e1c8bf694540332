// Comparisons, and selections by a predicate or a sign.
#include <cmath>
#include <limits>

#include "tests/model/ptx/arithmetic/arithmetic.h"
#include "tests/model/ptx/arithmetic/lanes.h"
#include "tests/model/ptx/arithmetic/rounding.h"

namespace ptx {
namespace {

struct Equal {
  template <typename T>
  static bool Holds(T a, T b) {
    return a == b;
  }
};
struct NotEqual {
  template <typename T>
  static bool Holds(T a, T b) {
    return std::is_integral_v<T> ? a != b : a < b || a > b;
  }
};
struct Less {
  template <typename T>
  static bool Holds(T a, T b) {
    return a < b;
  }
};
struct LessOrEqual {
  template <typename T>
  static bool Holds(T a, T b) {
    return a <= b;
  }
};
struct Greater {
  template <typename T>
  static bool Holds(T a, T b) {
    return a > b;
  }
};
struct GreaterOrEqual {
  template <typename T>
  static bool Holds(T a, T b) {
    return a >= b;
  }
};
struct BothNumbers {
  template <typename T>
  static bool Holds(T a, T b) {
    return a == a && b == b;
  }
};
// Holds for a NaN, too.
template <typename Opposite>
struct UnlessOrdered {
  template <typename T>
  static bool Holds(T a, T b) {
    return !Opposite::Holds(a, b);
  }
};

// ---- The results of comparisons

// setp and set: how Instruction::variant combines the result with the predicate of operand 3.
enum Combination { kAlone, kAnd, kOr, kXor };

uint32_t Combine(const Warp& warp, const Instruction& instruction, uint32_t holds) {
  if (instruction.variant == kAlone) return holds;
  const uint32_t with = PredicateOf(warp, instruction.operands[3]);
  switch (instruction.variant) {
    case kAnd: return holds & with;
    case kOr: return holds | with;
    default: return holds ^ with;
  }
}

void StoreSetp(Warp& warp, const Instruction& instruction, uint32_t first, uint32_t second,
               uint32_t mask) {
  const Operand& target = instruction.operands[0];
  const uint32_t p = Combine(warp, instruction, first);
  const uint32_t q = target.second < 0 ? 0 : Combine(warp, instruction, second);
  if (IsPredicate(target)) SetPredicate(warp, target.index, p, mask);
  if (target.second >= 0) SetPredicate(warp, target.second, q, mask);
}

// "True" as set writes it into a type: a one of a floating-point type, all ones of an integer.
uint32_t TrueOf(Type type) {
  switch (type) {
    case Type::kF32: return 0x3f800000;
    case Type::kF16: return 0x3c00;
    case Type::kF16x2: return 0x3c003c00;
    case Type::kBF16: return 0x3f80;
    case Type::kBF16x2: return 0x3f803f80;
    case Type::kU16:
    case Type::kS16: return 0xffff;
    default: return 0xffffffff;
  }
}

// Instruction::count is 2 for a comparison of both halves of a word.
void StoreSet(Warp& warp, const Instruction& instruction, uint32_t low, uint32_t high,
              uint32_t mask) {
  const uint32_t one = TrueOf(instruction.type);
  const bool halves = instruction.count == 2;
  const uint32_t low_bits = halves ? one & 0xffff : one, high_bits = halves ? one & 0xffff0000 : 0;
  low = Combine(warp, instruction, low);
  high = halves ? Combine(warp, instruction, high) : 0;
  Lanes& target = Target(warp, instruction.operands[0]);
  ForLanes(mask, [&](int lane) {
    target[lane] = (low >> lane & 1 ? low_bits : 0) | (high >> lane & 1 ? high_bits : 0);
  });
}

// ---- setp and set for a type and a comparison

template <bool kFtz, typename T>
auto ValueToCompare(T value) {
  if constexpr (kFtz) value = Flush(value);
  if constexpr (std::is_same_v<T, F16> || std::is_same_v<T, BF16>) {
    return FloatOf(value);
  } else {
    return value;
  }
}

template <typename T, typename Relation, bool kFtz>
struct Comparison {
  // The lanes in which it holds. The shift is 16 for the high halves of words.
  static uint32_t Holds(const Warp& warp, const Instruction& instruction, int shift) {
    const auto& operands = instruction.operands;
    if constexpr (std::is_floating_point_v<T>) {
      const Reader<T> a(warp, operands[1]), b(warp, operands[2]);
      return LanesWhere([&](int lane) {
        return Relation::Holds(ValueToCompare<kFtz>(a[lane]), ValueToCompare<kFtz>(b[lane]));
      });
    } else {
      const Lanes &a = Source(warp, operands[1]), &b = Source(warp, operands[2]);
      return LanesWhere([&](int lane) {
        return Relation::Holds(ValueToCompare<kFtz>(As<T>(a[lane] >> shift)),
                               ValueToCompare<kFtz>(As<T>(b[lane] >> shift)));
      });
    }
  }
  static Outcome Setp(Warp& warp, const Instruction& instruction, uint32_t mask) {
    const uint32_t first = Holds(warp, instruction, 0);
    const bool halves = sizeof(T) == 2 && instruction.count == 2;
    StoreSetp(warp, instruction, first, halves ? Holds(warp, instruction, 16) : ~first, mask);
    return Outcome::kNext;
  }
  static Outcome Set(Warp& warp, const Instruction& instruction, uint32_t mask) {
    const uint32_t low = Holds(warp, instruction, 0);
    const bool halves = sizeof(T) == 2 && instruction.count == 2;
    StoreSet(warp, instruction, low, halves ? Holds(warp, instruction, 16) : 0, mask);
    return Outcome::kNext;
  }
};

struct Functions {
  Execute setp = nullptr, set = nullptr;
};
template <typename T, typename Relation, bool kFtz = false>
constexpr Functions FunctionsOf() {
  return {&Comparison<T, Relation, kFtz>::Setp, &Comparison<T, Relation, kFtz>::Set};
}

// The place of a comparison's name in this list is its number.
int TakeComparison(Modifiers& modifiers) {
  return modifiers.TakeOneOf({"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ",
                              "neu", "ltu", "leu", "gtu", "geu", "num", "nan"});
}
constexpr int kNotEqual = 1, kGreaterOrEqual = 5, kHigherOrSame = 9, kUnordered = 10;

template <typename T>
Functions ForInteger(int comparison) {
  static constexpr Functions kFunctions[] = {
      FunctionsOf<T, Equal>(),       FunctionsOf<T, NotEqual>(), FunctionsOf<T, Less>(),
      FunctionsOf<T, LessOrEqual>(), FunctionsOf<T, Greater>(),  FunctionsOf<T, GreaterOrEqual>()};
  if (comparison <= kGreaterOrEqual) return kFunctions[comparison];
  if (std::is_signed_v<T> || comparison > kHigherOrSame) return {};
  return kFunctions[comparison - 4];
}
template <typename T>
Functions ForBits(int comparison) {
  return comparison <= kNotEqual ? ForInteger<T>(comparison) : Functions{};
}

template <typename T, bool kFtz>
Functions ForFloat(int comparison) {
  static constexpr Functions kFunctions[] = {FunctionsOf<T, Equal, kFtz>(),
                                             FunctionsOf<T, NotEqual, kFtz>(),
                                             FunctionsOf<T, Less, kFtz>(),
                                             FunctionsOf<T, LessOrEqual, kFtz>(),
                                             FunctionsOf<T, Greater, kFtz>(),
                                             FunctionsOf<T, GreaterOrEqual, kFtz>(),
                                             FunctionsOf<T, UnlessOrdered<NotEqual>, kFtz>(),
                                             FunctionsOf<T, UnlessOrdered<Equal>, kFtz>(),
                                             FunctionsOf<T, UnlessOrdered<GreaterOrEqual>, kFtz>(),
                                             FunctionsOf<T, UnlessOrdered<Greater>, kFtz>(),
                                             FunctionsOf<T, UnlessOrdered<LessOrEqual>, kFtz>(),
                                             FunctionsOf<T, UnlessOrdered<Less>, kFtz>(),
                                             FunctionsOf<T, BothNumbers, kFtz>(),
                                             FunctionsOf<T, UnlessOrdered<BothNumbers>, kFtz>()};
  if (comparison <= kGreaterOrEqual) return kFunctions[comparison];
  return comparison < kUnordered ? Functions{} : kFunctions[comparison - 4];
}

Functions ForType(Type type, int comparison, bool ftz) {
  if (ftz) {
    switch (type) {
      case Type::kF32: return ForFloat<float, true>(comparison);
      case Type::kF16:
      case Type::kF16x2: return ForFloat<F16, true>(comparison);
      default: return {};
    }
  }
  switch (type) {
    case Type::kB16: return ForBits<uint16_t>(comparison);
    case Type::kB32: return ForBits<uint32_t>(comparison);
    case Type::kB64: return ForBits<uint64_t>(comparison);
    case Type::kU16: return ForInteger<uint16_t>(comparison);
    case Type::kU32: return ForInteger<uint32_t>(comparison);
    case Type::kU64: return ForInteger<uint64_t>(comparison);
    case Type::kS16: return ForInteger<int16_t>(comparison);
    case Type::kS32: return ForInteger<int32_t>(comparison);
    case Type::kS64: return ForInteger<int64_t>(comparison);
    case Type::kF32: return ForFloat<float, false>(comparison);
    case Type::kF64: return ForFloat<double, false>(comparison);
    case Type::kF16:
    case Type::kF16x2: return ForFloat<F16, false>(comparison);
    case Type::kBF16:
    case Type::kBF16x2: return ForFloat<BF16, false>(comparison);
    default: return {};
  }
}

bool FitsComparison(const Instruction& instruction, Type type) {
  const auto& operands = instruction.operands;
  if (operands.size() != (instruction.variant == kAlone ? 3 : 4)) return false;
  if (instruction.variant != kAlone && !FitsSource<bool>(operands[3])) return false;
  return FitsSourceOf(type, operands[1]) && FitsSourceOf(type, operands[2]);
}

bool IsHalfPair(Type type) { return type == Type::kF16x2 || type == Type::kBF16x2; }

Execute DecodeSetp(Instruction& instruction, Modifiers& modifiers) {
  const int comparison = TakeComparison(modifiers);
  instruction.variant = modifiers.TakeOneOf({"and", "or", "xor"}) + 1;
  const bool ftz = modifiers.Take("ftz");
  instruction.type = modifiers.TakeType();
  instruction.count = IsHalfPair(instruction.type) ? 2 : 1;
  if (comparison < 0 || !FitsComparison(instruction, instruction.type)) return nullptr;
  const Operand& target = instruction.operands[0];
  if (!IsPredicate(target) && target.kind != Operand::kSink) return nullptr;
  return ForType(instruction.type, comparison, ftz).setp;
}

// Returns true if set can write a comparison of `from` as this type.
bool FitsSet(Type type, Type from) {
  switch (type) {
    case Type::kU32:
    case Type::kS32: return true;
    case Type::kF32:
    case Type::kF16:
    case Type::kBF16: return !IsHalfPair(from);
    case Type::kU16:
    case Type::kS16: return from == Type::kF16 || from == Type::kBF16;
    case Type::kF16x2:
    case Type::kBF16x2: return type == from;
    default: return false;
  }
}

Execute DecodeSet(Instruction& instruction, Modifiers& modifiers) {
  const int comparison = TakeComparison(modifiers);
  instruction.variant = modifiers.TakeOneOf({"and", "or", "xor"}) + 1;
  const bool ftz = modifiers.Take("ftz");
  instruction.type = modifiers.TakeType();
  instruction.from = modifiers.TakeType();
  instruction.count = IsHalfPair(instruction.from) ? 2 : 1;
  if (comparison < 0 || !FitsComparison(instruction, instruction.from)) return nullptr;
  if (!FitsSet(instruction.type, instruction.from)) return nullptr;
  const Operand& target = instruction.operands[0];
  if (target.kind != Operand::kRegister) return nullptr;
  if (Bytes(target.type) != Bytes(instruction.type)) return nullptr;
  return ForType(instruction.from, comparison, ftz).set;
}

// ---- selp, slct, testp

template <typename T>
struct Select {
  static T Run(T a, T b, bool first) { return first ? a : b; }
};
template <typename T>
struct SelectBySign {
  static T Run(T a, T b, int32_t c) { return c >= 0 ? a : b; }
};
template <typename T>
struct SelectByFloatSign {
  static T Run(T a, T b, float c) { return c >= 0 ? a : b; }
};
// A negative subnormal number counts as -0, which is not less than zero.
template <typename T>
struct SelectByFlushedSign {
  static T Run(T a, T b, float c) { return Flush(c) >= 0 ? a : b; }
};

template <template <typename> class Function>
Execute MapSelection(const Instruction& instruction) {
  if (instruction.type == Type::kF32) return Map<&Function<float>::Run>(instruction);
  if (instruction.type == Type::kF64) return Map<&Function<double>::Run>(instruction);
  if (IsFloat(instruction.type)) return nullptr;
  switch (Bytes(instruction.type)) {
    case 2: return Map<&Function<uint16_t>::Run>(instruction);
    case 4: return Map<&Function<uint32_t>::Run>(instruction);
    case 8: return Map<&Function<uint64_t>::Run>(instruction);
    default: return nullptr;
  }
}

Execute DecodeSelp(Instruction& instruction, Modifiers& modifiers) {
  instruction.type = modifiers.TakeType();
  return MapSelection<Select>(instruction);
}

Execute DecodeSlct(Instruction& instruction, Modifiers& modifiers) {
  const bool ftz = modifiers.Take("ftz");
  instruction.type = modifiers.TakeType();
  instruction.from = modifiers.TakeType();
  if (instruction.from == Type::kF32) {
    return ftz ? MapSelection<SelectByFlushedSign>(instruction)
               : MapSelection<SelectByFloatSign>(instruction);
  }
  if (ftz || instruction.from != Type::kS32) return nullptr;
  return MapSelection<SelectBySign>(instruction);
}

enum Property { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };

template <typename T, Property kProperty>
bool Has(T value) {
  switch (kProperty) {
    case kFinite: return std::isfinite(value);
    case kInfinite: return std::isinf(value);
    case kNumber: return !std::isnan(value);
    case kNotANumber: return std::isnan(value);
    case kNormal: return std::isnormal(value) || value == 0;
    case kSubnormal: return std::fpclassify(value) == FP_SUBNORMAL;
  }
  return false;
}

template <typename T>
Execute MapProperty(const Instruction& instruction, int property) {
  switch (property) {
    case kFinite: return Map<&Has<T, kFinite>>(instruction);
    case kInfinite: return Map<&Has<T, kInfinite>>(instruction);
    case kNumber: return Map<&Has<T, kNumber>>(instruction);
    case kNotANumber: return Map<&Has<T, kNotANumber>>(instruction);
    case kNormal: return Map<&Has<T, kNormal>>(instruction);
    case kSubnormal: return Map<&Has<T, kSubnormal>>(instruction);
    default: return nullptr;
  }
}

Execute DecodeTestp(Instruction& instruction, Modifiers& modifiers) {
  const int property =
      modifiers.TakeOneOf({"finite", "infinite", "number", "notanumber", "normal", "subnormal"});
  instruction.type = modifiers.TakeType();
  if (instruction.type == Type::kF32) return MapProperty<float>(instruction, property);
  if (instruction.type == Type::kF64) return MapProperty<double>(instruction, property);
  return nullptr;
}

}  // namespace

const DecoderTable& CompareDecoders() {
  static const DecoderTable decoders = {
      {"setp", DecodeSetp}, {"set", DecodeSet},     {"selp", DecodeSelp},
      {"slct", DecodeSlct}, {"testp", DecodeTestp},
  };
  return decoders;
}

}  // namespace ptx
