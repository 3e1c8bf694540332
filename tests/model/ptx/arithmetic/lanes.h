// Instructions that compute each lane's result from the same lane's sources, made from a function
// on values.
//
// Map<&Run>(instruction) is the function that runs the instruction if its operands fit the types of
// Run's parameters and result, else null. A parameter or result of type bool is a predicate. A
// first parameter of type Options gets Instruction::flags.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "tests/model/ptx/arithmetic/halves.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {

struct Options {
  uint32_t flags;
};

// Calls function(lane) for each lane of the mask. Unlike ForLanes, promises the compiler that a
// call reads no lane that another call writes.
template <typename Function>
void EachLane(uint32_t mask, Function function) {
  if (mask == kAllLanes) {
#pragma GCC ivdep
    for (int lane = 0; lane < 32; ++lane) function(lane);
  } else {
    for (; mask; mask &= mask - 1) function(__builtin_ctz(mask));
  }
}

// Returns the lanes in which holds(lane) is true, for all lanes.
template <typename Function>
uint32_t LanesWhere(Function holds) {
  uint32_t lanes = 0;
  for (int lane = 0; lane < 32; ++lane) lanes |= uint32_t{holds(lane)} << lane;
  return lanes;
}

// A source operand, as values of type T.
template <typename T>
class Reader {
 public:
  Reader(const Warp& warp, const Operand& operand) : lanes_(Source(warp, operand)) {}
  T operator[](int lane) const { return As<T>(lanes_[lane]); }

 private:
  const Lanes& lanes_;
};

// A decimal literal is of f64, in an instruction of f32 as well.
template <>
class Reader<float> {
 public:
  Reader(const Warp& warp, const Operand& operand) : lanes_(&Source(warp, operand)) {
    if (operand.kind == Operand::kConstant && operand.type == Type::kF64) {
      converted_.fill(Bits(static_cast<float>(As<double>((*lanes_)[0]))));
      lanes_ = &converted_;
    }
  }
  Reader(const Reader&) = delete;
  float operator[](int lane) const { return As<float>((*lanes_)[lane]); }

 private:
  const Lanes* lanes_;
  Lanes converted_;
};

template <>
class Reader<bool> {
 public:
  Reader(const Warp& warp, const Operand& operand) : lanes_(PredicateOf(warp, operand)) {}
  bool operator[](int lane) const { return lanes_ >> lane & 1; }

 private:
  const uint32_t lanes_;
};

inline bool IsPredicate(const Operand& operand) { return operand.kind == Operand::kPredicate; }

// Returns true if a source operand can be read as this type. A register must have its size: PTX
// allows others only for cvt, ld and st.
inline bool FitsSourceOf(Type type, const Operand& operand) {
  if (operand.kind == Operand::kRegister) return Bytes(operand.type) == Bytes(type);
  if (operand.kind != Operand::kConstant) return false;
  const bool is_float = operand.type == Type::kF32 || operand.type == Type::kF64;
  if (type == Type::kF32) return is_float;
  if (type == Type::kF64) return operand.type == Type::kF64;
  // The bits of a floating-point literal stand for an integer of its size; there are none of f16.
  return !IsFloat(type) && (!is_float || Bytes(operand.type) == Bytes(type));
}

// The PTX type that an instruction with a parameter of type T has, up to the sign.
template <typename T>
constexpr Type TypeOf() {
  if (std::is_same_v<T, float>) return Type::kF32;
  if (std::is_same_v<T, double>) return Type::kF64;
  if (std::is_same_v<T, F16>) return Type::kF16;
  if (std::is_same_v<T, BF16>) return Type::kBF16;
  return sizeof(T) == 2 ? Type::kB16 : sizeof(T) == 4 ? Type::kB32 : Type::kB64;
}
template <typename T>
bool FitsSource(const Operand& operand) {
  if constexpr (std::is_same_v<T, bool>) {
    return IsPredicate(operand) || operand.kind == Operand::kConstant;
  }
  return FitsSourceOf(TypeOf<T>(), operand);
}
template <typename T>
bool FitsTarget(const Operand& operand) {
  if constexpr (std::is_same_v<T, bool>) return IsPredicate(operand);
  return operand.kind == Operand::kRegister && Bytes(operand.type) == sizeof(T);
}

template <typename... Types>
struct TypeList {};

// kFunction takes Head..., which is Options or nothing, and then the values of the sources.
template <auto kFunction, typename Result, typename Head, typename... Values>
class MapOf;
template <auto kFunction, typename Result, typename... Head, typename... Values>
class MapOf<kFunction, Result, TypeList<Head...>, Values...> {
 public:
  static bool Fits(const Instruction& instruction) {
    return FitsAll(instruction.operands, std::index_sequence_for<Values...>{});
  }
  static Outcome Run(Warp& warp, const Instruction& instruction, uint32_t mask) {
    return Open(warp, instruction, mask, std::index_sequence_for<Values...>{});
  }

 private:
  template <size_t... kIndex>
  static bool FitsAll(const std::vector<Operand>& operands, std::index_sequence<kIndex...>) {
    return operands.size() == sizeof...(Values) + 1 && FitsTarget<Result>(operands[0]) &&
           (FitsSource<Values>(operands[kIndex + 1]) && ...);
  }
  template <size_t... kIndex>
  static Outcome Open(Warp& warp, const Instruction& instruction, uint32_t mask,
                      std::index_sequence<kIndex...>) {
    return Loop(warp, instruction, mask, Reader<Values>(warp, instruction.operands[kIndex + 1])...);
  }
  static Outcome Loop(Warp& warp, const Instruction& instruction, uint32_t mask,
                      const Reader<Values>&... sources) {
    [[maybe_unused]] const uint32_t flags = instruction.flags;
    const auto value = [&](int lane) { return kFunction(Head{flags}..., sources[lane]...); };
    if constexpr (std::is_same_v<Result, bool>) {
      SetPredicate(warp, instruction.operands[0].index, LanesWhere(value), mask);
    } else {
      Lanes& target = Target(warp, instruction.operands[0]);
      EachLane(mask, [&](int lane) { target[lane] = Bits(value(lane)); });
    }
    return Outcome::kNext;
  }
};

template <auto kFunction, typename Result, typename... Values>
MapOf<kFunction, Result, TypeList<>, Values...> MapFor(Result (*)(Values...));
template <auto kFunction, typename Result, typename... Values>
MapOf<kFunction, Result, TypeList<Options>, Values...> MapFor(Result (*)(Options, Values...));

template <auto kFunction>
Execute Map(const Instruction& instruction) {
  using Mapping = decltype(MapFor<kFunction>(kFunction));
  return Mapping::Fits(instruction) ? &Mapping::Run : nullptr;
}

// For packs of as many equal types as there are indices.
template <typename T, size_t>
using Repeat = T;

// ---- Families of functions: Function<T>::Run for a T of the instruction's type.

template <template <typename> class Function>
Execute MapUnsigned(const Instruction& instruction) {
  switch (instruction.type) {
    case Type::kU16: return Map<&Function<uint16_t>::Run>(instruction);
    case Type::kU32: return Map<&Function<uint32_t>::Run>(instruction);
    case Type::kU64: return Map<&Function<uint64_t>::Run>(instruction);
    default: return nullptr;
  }
}
template <template <typename> class Function>
Execute MapSigned(const Instruction& instruction) {
  switch (instruction.type) {
    case Type::kS16: return Map<&Function<int16_t>::Run>(instruction);
    case Type::kS32: return Map<&Function<int32_t>::Run>(instruction);
    case Type::kS64: return Map<&Function<int64_t>::Run>(instruction);
    default: return nullptr;
  }
}
template <template <typename> class Function>
Execute MapIntegers(const Instruction& instruction) {
  return IsSigned(instruction.type) ? MapSigned<Function>(instruction)
                                    : MapUnsigned<Function>(instruction);
}
// The unsigned integers of the size of .b16, .b32 and .b64.
template <template <typename> class Function>
Execute MapBits(const Instruction& instruction) {
  switch (instruction.type) {
    case Type::kB16: return Map<&Function<uint16_t>::Run>(instruction);
    case Type::kB32: return Map<&Function<uint32_t>::Run>(instruction);
    case Type::kB64: return Map<&Function<uint64_t>::Run>(instruction);
    default: return nullptr;
  }
}

}  // namespace ptx
