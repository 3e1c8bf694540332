// Logic, shifts, bit fields, bytes, and dot products of bytes.
#include <bit>

#include "tests/model/ptx/arithmetic/arithmetic.h"
#include "tests/model/ptx/arithmetic/lanes.h"

namespace ptx {
namespace {

template <typename T>
constexpr uint32_t kWidth = sizeof(T) * 8;

template <typename T>
struct And {
  static T Run(T a, T b) { return a & b; }
};
template <typename T>
struct Or {
  static T Run(T a, T b) { return a | b; }
};
template <typename T>
struct Xor {
  static T Run(T a, T b) { return a ^ b; }
};
template <typename T>
struct Not {
  static T Run(T a) { return static_cast<T>(~a); }
};
template <typename T>
struct LogicalNot {
  static T Run(T a) { return a == 0; }
};

// Shifts past the width give zero, or the sign in all bits.
template <typename T>
struct ShiftLeft {
  static T Run(T a, uint32_t by) {
    return by < kWidth<T> ? static_cast<T>(uint64_t{a} << (by & 63)) : T{0};
  }
};
template <typename T>
struct ShiftRight {
  static T Run(T a, uint32_t by) {
    const uint32_t last = kWidth<T> - 1;
    if constexpr (std::is_signed_v<T>) return static_cast<T>(a >> (by < last ? by : last));
    return by <= last ? static_cast<T>(a >> (by & last)) : T{0};
  }
};

uint32_t FunnelLeftClamp(uint32_t a, uint32_t b, uint32_t by) {
  const uint64_t both = uint64_t{b} << 32 | a;
  return static_cast<uint32_t>(both << (by < 32 ? by : 32) >> 32);
}
uint32_t FunnelLeftWrap(uint32_t a, uint32_t b, uint32_t by) {
  return FunnelLeftClamp(a, b, by & 31);
}
uint32_t FunnelRightClamp(uint32_t a, uint32_t b, uint32_t by) {
  const uint64_t both = uint64_t{b} << 32 | a;
  return static_cast<uint32_t>(both >> (by < 32 ? by : 32));
}
uint32_t FunnelRightWrap(uint32_t a, uint32_t b, uint32_t by) {
  return FunnelRightClamp(a, b, by & 31);
}

template <typename T>
struct CountOnes {
  static uint32_t Run(T a) { return static_cast<uint32_t>(std::popcount(a)); }
};
template <typename T>
struct LeadingZeros {
  static uint32_t Run(T a) { return static_cast<uint32_t>(std::countl_zero(a)); }
};
template <typename T>
struct Reverse {
  static T Run(T a) {
    uint64_t bits = a;
    bits = (bits >> 1 & 0x5555555555555555) | (bits & 0x5555555555555555) << 1;
    bits = (bits >> 2 & 0x3333333333333333) | (bits & 0x3333333333333333) << 2;
    bits = (bits >> 4 & 0x0f0f0f0f0f0f0f0f) | (bits & 0x0f0f0f0f0f0f0f0f) << 4;
    return static_cast<T>(__builtin_bswap64(bits) >> (64 - kWidth<T>));
  }
};

// The place of the uppermost bit that differs from the sign.
template <typename T>
struct FindBit {
  static uint32_t Run(T a) {
    const auto bits = static_cast<std::make_unsigned_t<T>>(a < 0 ? ~a : a);
    return kWidth<T> - 1 - static_cast<uint32_t>(std::countl_zero(bits));
  }
};
template <typename T>
struct FindBitShift {
  static uint32_t Run(T a) {
    const uint32_t place = FindBit<T>::Run(a);
    return place == UINT32_MAX ? place : kWidth<T> - 1 - place;
  }
};

template <typename T>
struct ExtractField {
  static T Run(T a, uint32_t position, uint32_t length) {
    using Unsigned = std::make_unsigned_t<T>;
    const uint32_t from = position & 255, bits = length & 255, last = kWidth<T> - 1;
    if (bits == 0) return 0;
    const uint32_t sign_at = from + bits - 1 < last ? from + bits - 1 : last;
    const auto word = static_cast<Unsigned>(a);
    const bool sign = std::is_signed_v<T> && (word >> sign_at & 1);
    const auto field = static_cast<Unsigned>(from <= last ? word >> from : 0);
    // Bits of the field that lie past the top of `a` have the sign as well.
    const uint32_t kept = from > last ? 0 : sign_at - from + 1;
    const auto mask = static_cast<Unsigned>(kept > last ? ~Unsigned{0} : (Unsigned{1} << kept) - 1);
    return static_cast<T>((field & mask) | (sign ? ~mask : 0));
  }
};
template <typename T>
struct InsertField {
  static T Run(T a, T b, uint32_t position, uint32_t length) {
    const uint32_t from = position & 255, bits = length & 255;
    if (from >= kWidth<T>) return b;
    const T ones = bits >= kWidth<T> ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << bits) - 1);
    const auto mask = static_cast<T>(ones << from);
    return (b & ~mask) | (static_cast<T>(a << from) & mask);
  }
};

uint32_t MaskWrap(uint32_t position, uint32_t width) {
  const uint64_t ones = (uint64_t{1} << (width & 31)) - 1;
  return static_cast<uint32_t>(ones << (position & 31));
}
uint32_t MaskClamp(uint32_t position, uint32_t width) {
  if (position >= 32) return 0;
  const uint64_t ones = width >= 32 ? UINT32_MAX : (uint64_t{1} << width) - 1;
  return static_cast<uint32_t>(ones << position);
}

template <typename T>
struct ExtendWrap {
  static T Run(T a, uint32_t width) {
    const uint32_t unused = 32 - (width & 31);
    if (unused == 32) return 0;
    return static_cast<T>(static_cast<T>(static_cast<uint32_t>(a) << unused) >> unused);
  }
};
template <typename T>
struct ExtendClamp {
  static T Run(T a, uint32_t width) { return width >= 32 ? a : ExtendWrap<T>::Run(a, width); }
};

uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t selector = selectors >> 4 * i;
    const auto byte = static_cast<uint8_t>(bytes >> 8 * (selector & 7));
    const uint32_t sign = byte & 0x80 ? 0xff : 0;
    result |= (selector & 8 ? sign : byte) << 8 * i;
  }
  return result;
}
// The selectors of a mode of prmt, for the four values of the control, the lowest byte's first.
template <uint16_t k0, uint16_t k1, uint16_t k2, uint16_t k3>
uint32_t PermuteByMode(uint32_t a, uint32_t b, uint32_t control) {
  constexpr uint16_t kSelectors[] = {k0, k1, k2, k3};
  return PermuteBytes(a, b, kSelectors[control & 3]);
}

// An element of a word, with the sign of its type.
template <typename Element>
int64_t ElementOf(uint32_t word, int index) {
  return static_cast<Element>(word >> index * 8 * static_cast<int>(sizeof(Element)));
}
template <typename A, typename B>
uint32_t DotBytes(uint32_t a, uint32_t b, uint32_t c) {
  int64_t sum = c;
  for (int i = 0; i < 4; ++i) sum += ElementOf<A>(a, i) * ElementOf<B>(b, i);
  return static_cast<uint32_t>(sum);
}
template <typename A, typename B, int kFirst>
uint32_t DotWords(uint32_t a, uint32_t b, uint32_t c) {
  int64_t sum = c;
  for (int i = 0; i < 2; ++i) sum += ElementOf<A>(a, i) * ElementOf<B>(b, kFirst + i);
  return static_cast<uint32_t>(sum);
}

// lop3: Instruction::flags is the table, bit 4a + 2b + c; Instruction::variant is one of these.
enum Lop3Variant { kNoPredicate, kOrPredicate, kAndPredicate };

Outcome RunLop3(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  const Reader<uint32_t> a(warp, operands[1]), b(warp, operands[2]), c(warp, operands[3]);
  uint32_t table[8];
  for (int i = 0; i < 8; ++i) table[i] = instruction.flags >> i & 1 ? UINT32_MAX : 0;
  const auto select = [](uint32_t bits, uint32_t zero, uint32_t one) {
    return zero ^ (bits & (zero ^ one));
  };
  uint32_t results[32];
  for (int lane = 0; lane < 32; ++lane) {
    const auto by_c = [&](int index) { return select(c[lane], table[index], table[index + 1]); };
    const uint32_t low = select(b[lane], by_c(0), by_c(2));
    results[lane] = select(a[lane], low, select(b[lane], by_c(4), by_c(6)));
  }
  if (operands[0].kind == Operand::kRegister) {
    Lanes& target = Target(warp, operands[0]);
    EachLane(mask, [&](int lane) { target[lane] = results[lane]; });
  }
  if (instruction.variant != kNoPredicate) {
    const uint32_t nonzero = LanesWhere([&](int lane) { return results[lane] != 0; });
    const uint32_t with = PredicateOf(warp, operands[5]);
    const bool is_or = instruction.variant == kOrPredicate;
    SetPredicate(warp, operands[0].second, is_or ? nonzero | with : nonzero & with, mask);
  }
  return Outcome::kNext;
}

Execute DecodeLop3(Instruction& instruction, Modifiers& modifiers) {
  instruction.variant = modifiers.TakeOneOf({"or", "and"}) + 1;
  if (!modifiers.Take("b32")) return nullptr;
  const bool has_predicate = instruction.variant != kNoPredicate;
  const auto& operands = instruction.operands;
  if (operands.size() != (has_predicate ? 6 : 5)) return nullptr;
  if (has_predicate != (operands[0].second >= 0)) return nullptr;
  const bool sink = has_predicate && operands[0].kind == Operand::kSink;
  if (!sink && !FitsTarget<uint32_t>(operands[0])) return nullptr;
  for (int i = 1; i <= 3; ++i) {
    if (!FitsSource<uint32_t>(operands[i])) return nullptr;
  }
  if (operands[4].kind != Operand::kConstant || (operands[4].bits & ~int64_t{255})) return nullptr;
  if (has_predicate && !FitsSource<bool>(operands[5])) return nullptr;
  instruction.flags = static_cast<uint32_t>(operands[4].bits);
  return RunLop3;
}

// and, or, xor, not of predicates.
enum PredicateOperation { kAnd, kOr, kXor, kNot };

template <PredicateOperation kOperation>
Outcome RunPredicates(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto& operands = instruction.operands;
  const uint32_t a = PredicateOf(warp, operands[1]);
  const uint32_t b = kOperation == kNot ? 0 : PredicateOf(warp, operands[2]);
  uint32_t value = ~a;
  if (kOperation == kAnd) value = a & b;
  if (kOperation == kOr) value = a | b;
  if (kOperation == kXor) value = a ^ b;
  SetPredicate(warp, operands[0].index, value, mask);
  return Outcome::kNext;
}

template <template <typename> class Function, PredicateOperation kOperation>
Execute DecodeLogic(Instruction& instruction, Modifiers& modifiers) {
  instruction.type = modifiers.TakeType();
  if (instruction.type != Type::kPred) return MapBits<Function>(instruction);
  const auto& operands = instruction.operands;
  if (operands.size() != (kOperation == kNot ? 2 : 3)) return nullptr;
  if (!FitsTarget<bool>(operands[0])) return nullptr;
  for (size_t i = 1; i < operands.size(); ++i) {
    if (!FitsSource<bool>(operands[i])) return nullptr;
  }
  return RunPredicates<kOperation>;
}

template <template <typename> class Function>
Execute DecodeBits(Instruction& instruction, Modifiers& modifiers) {
  instruction.type = modifiers.TakeType();
  return MapBits<Function>(instruction);
}
// Refuses .b16.
template <template <typename> class Function>
Execute DecodeWords(Instruction& instruction, Modifiers& modifiers) {
  instruction.type = modifiers.TakeType();
  return instruction.type == Type::kB16 ? nullptr : MapBits<Function>(instruction);
}

Execute DecodeShiftRight(Instruction& instruction, Modifiers& modifiers) {
  instruction.type = modifiers.TakeType();
  const Execute execute = MapBits<ShiftRight>(instruction);
  return execute ? execute : MapIntegers<ShiftRight>(instruction);
}

Execute DecodeFunnel(Instruction& instruction, Modifiers& modifiers) {
  const int direction = modifiers.TakeOneOf({"l", "r"});
  const int mode = modifiers.TakeOneOf({"clamp", "wrap"});
  if (direction < 0 || mode < 0 || !modifiers.Take("b32")) return nullptr;
  if (direction == 0) {
    return mode == 0 ? Map<&FunnelLeftClamp>(instruction) : Map<&FunnelLeftWrap>(instruction);
  }
  return mode == 0 ? Map<&FunnelRightClamp>(instruction) : Map<&FunnelRightWrap>(instruction);
}

// Refuses types of 16 bits.
template <template <typename> class Function>
Execute MapWords(const Instruction& instruction) {
  return Bytes(instruction.type) < 4 ? nullptr : MapIntegers<Function>(instruction);
}

Execute DecodeFindBit(Instruction& instruction, Modifiers& modifiers) {
  const bool shift = modifiers.Take("shiftamt");
  instruction.type = modifiers.TakeType();
  return shift ? MapWords<FindBitShift>(instruction) : MapWords<FindBit>(instruction);
}
Execute DecodeExtractField(Instruction& instruction, Modifiers& modifiers) {
  instruction.type = modifiers.TakeType();
  return MapWords<ExtractField>(instruction);
}

Execute DecodeMask(Instruction& instruction, Modifiers& modifiers) {
  const int mode = modifiers.TakeOneOf({"clamp", "wrap"});
  if (mode < 0 || !modifiers.Take("b32")) return nullptr;
  return mode == 0 ? Map<&MaskClamp>(instruction) : Map<&MaskWrap>(instruction);
}
Execute DecodeExtend(Instruction& instruction, Modifiers& modifiers) {
  const int mode = modifiers.TakeOneOf({"clamp", "wrap"});
  instruction.type = modifiers.TakeType();
  if (mode < 0 || Bytes(instruction.type) != 4) return nullptr;
  return mode == 0 ? MapIntegers<ExtendClamp>(instruction) : MapIntegers<ExtendWrap>(instruction);
}

Execute DecodePermute(Instruction& instruction, Modifiers& modifiers) {
  if (!modifiers.Take("b32")) return nullptr;
  switch (modifiers.TakeOneOf({"f4e", "b4e", "rc8", "ecl", "ecr", "rc16"})) {
    case 0: return Map<&PermuteByMode<0x3210, 0x4321, 0x5432, 0x6543>>(instruction);
    case 1: return Map<&PermuteByMode<0x5670, 0x6701, 0x7012, 0x0123>>(instruction);
    case 2: return Map<&PermuteByMode<0x0000, 0x1111, 0x2222, 0x3333>>(instruction);
    case 3: return Map<&PermuteByMode<0x3210, 0x3211, 0x3222, 0x3333>>(instruction);
    case 4: return Map<&PermuteByMode<0x0000, 0x1110, 0x2210, 0x3210>>(instruction);
    case 5: return Map<&PermuteByMode<0x1010, 0x3232, 0x1010, 0x3232>>(instruction);
    default: return Map<&PermuteBytes>(instruction);
  }
}

template <typename A, typename B>
Execute MapDot(const Instruction& instruction, int half) {
  using WordOfA = std::conditional_t<std::is_signed_v<A>, int16_t, uint16_t>;
  switch (half) {
    case 0: return Map<&DotWords<WordOfA, B, 0>>(instruction);
    case 1: return Map<&DotWords<WordOfA, B, 2>>(instruction);
    default: return Map<&DotBytes<A, B>>(instruction);
  }
}
Execute DecodeDot(Instruction& instruction, Modifiers& modifiers) {
  int half = -1;
  if (instruction.opcode[0] == "dp2a" && (half = modifiers.TakeOneOf({"lo", "hi"})) < 0)
    return nullptr;
  instruction.type = modifiers.TakeType();
  instruction.from = modifiers.TakeType();
  const bool a_signed = instruction.type == Type::kS32, b_signed = instruction.from == Type::kS32;
  if (!a_signed && instruction.type != Type::kU32) return nullptr;
  if (!b_signed && instruction.from != Type::kU32) return nullptr;
  if (a_signed && b_signed) return MapDot<int8_t, int8_t>(instruction, half);
  if (a_signed) return MapDot<int8_t, uint8_t>(instruction, half);
  return b_signed ? MapDot<uint8_t, int8_t>(instruction, half)
                  : MapDot<uint8_t, uint8_t>(instruction, half);
}

}  // namespace

const DecoderTable& BitDecoders() {
  static const DecoderTable decoders = {
      {"and", DecodeLogic<And, kAnd>},
      {"or", DecodeLogic<Or, kOr>},
      {"xor", DecodeLogic<Xor, kXor>},
      {"not", DecodeLogic<Not, kNot>},
      {"cnot", DecodeBits<LogicalNot>},
      {"lop3", DecodeLop3},
      {"shl", DecodeBits<ShiftLeft>},
      {"shr", DecodeShiftRight},
      {"shf", DecodeFunnel},
      {"popc", DecodeWords<CountOnes>},
      {"clz", DecodeWords<LeadingZeros>},
      {"brev", DecodeWords<Reverse>},
      {"bfind", DecodeFindBit},
      {"bfe", DecodeExtractField},
      {"bfi", DecodeWords<InsertField>},
      {"bmsk", DecodeMask},
      {"szext", DecodeExtend},
      {"prmt", DecodePermute},
      {"dp4a", DecodeDot},
      {"dp2a", DecodeDot},
  };
  return decoders;
}

}  // namespace ptx
