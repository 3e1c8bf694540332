// Arithmetic with the carry of each lane, Warp::carry.
#include "tests/model/ptx/arithmetic/arithmetic.h"
#include "tests/model/ptx/arithmetic/lanes.h"

namespace ptx {
namespace {

enum Kind { kAdd, kSub, kMadLo, kMadHi };
enum Flags : uint32_t { kReadsCarry = 1, kWritesCarry = 2 };

template <typename T>
T Product(T a, T b, bool high) {
  using Unsigned = std::make_unsigned_t<T>;
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  const auto product = static_cast<unsigned __int128>(Wide{a} * Wide{b});
  return static_cast<T>(static_cast<Unsigned>(high ? product >> sizeof(T) * 8 : product));
}

// Returns x + y + carry, or x - y - carry, and sets the carry that comes out.
template <typename T>
T AddWithCarry(T x, T y, bool subtract, bool& carry) {
  const T result = subtract ? x - y - carry : x + y + carry;
  carry = subtract ? x < y || (carry && x == y) : result < x || (carry && result == x);
  return result;
}

template <typename T, Kind kKind>
Outcome RunCarry(Warp& warp, const Instruction& instruction, uint32_t mask) {
  using Unsigned = std::make_unsigned_t<T>;
  constexpr bool kMad = kKind == kMadLo || kKind == kMadHi;
  const Reader<T> a(warp, instruction.operands[1]), b(warp, instruction.operands[2]);
  const Reader<T> c(warp, instruction.operands[kMad ? 3 : 2]);
  Lanes& target = Target(warp, instruction.operands[0]);
  const uint32_t before = instruction.flags & kReadsCarry ? warp.carry : 0;
  uint32_t after = 0;
  ForLanes(mask, [&](int lane) {
    const T first = kMad ? Product(a[lane], b[lane], kKind == kMadHi) : a[lane];
    const T second = kMad ? c[lane] : b[lane];
    bool carry = before >> lane & 1;
    target[lane] = AddWithCarry<Unsigned>(static_cast<Unsigned>(first),
                                          static_cast<Unsigned>(second), kKind == kSub, carry);
    after |= uint32_t{carry} << lane;
  });
  if (instruction.flags & kWritesCarry) warp.carry = (warp.carry & ~mask) | after;
  return Outcome::kNext;
}

template <typename T>
Execute CarryOf(const Instruction& instruction, Kind kind) {
  const auto& operands = instruction.operands;
  const size_t sources = kind == kMadLo || kind == kMadHi ? 3 : 2;
  if (operands.size() != sources + 1 || !FitsTarget<T>(operands[0])) return nullptr;
  for (size_t i = 1; i <= sources; ++i) {
    if (!FitsSource<T>(operands[i])) return nullptr;
  }
  switch (kind) {
    case kAdd: return RunCarry<T, kAdd>;
    case kSub: return RunCarry<T, kSub>;
    case kMadLo: return RunCarry<T, kMadLo>;
    default: return RunCarry<T, kMadHi>;
  }
}

Execute DecodeCarry(Instruction& instruction, Modifiers& modifiers) {
  Kind kind = instruction.opcode[0].starts_with("add") ? kAdd : kSub;
  if (instruction.opcode[0].starts_with("mad")) {
    const int half = modifiers.TakeOneOf({"lo", "hi"});
    if (half < 0) return nullptr;
    kind = half == 0 ? kMadLo : kMadHi;
  }
  switch (instruction.type) {
    case Type::kU32: return CarryOf<uint32_t>(instruction, kind);
    case Type::kS32: return CarryOf<int32_t>(instruction, kind);
    case Type::kU64: return CarryOf<uint64_t>(instruction, kind);
    case Type::kS64: return CarryOf<int64_t>(instruction, kind);
    default: return nullptr;
  }
}

Execute DecodeCarryIn(Instruction& instruction, Modifiers& modifiers) {
  instruction.flags = kReadsCarry;
  if (modifiers.Take("cc")) instruction.flags |= kWritesCarry;
  instruction.type = modifiers.TakeType();
  return DecodeCarry(instruction, modifiers);
}

}  // namespace

Execute DecodeCarryOut(Instruction& instruction, Modifiers& modifiers) {
  instruction.flags = kWritesCarry;
  return DecodeCarry(instruction, modifiers);
}

const DecoderTable& CarryDecoders() {
  static const DecoderTable decoders = {
      {"addc", DecodeCarryIn}, {"subc", DecodeCarryIn}, {"madc", DecodeCarryIn}};
  return decoders;
}

}  // namespace ptx
