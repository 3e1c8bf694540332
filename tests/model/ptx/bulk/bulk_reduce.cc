// The arithmetic of cp.reduce.async.bulk.
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/model/ptx/arithmetic/floats.h"
#include "tests/model/ptx/bulk/bulk.h"
#include "tests/model/ptx/instructions/access.h"

namespace ptx {
namespace {

enum Operation : int { kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };
// The numbers that CombineValues has for them.
constexpr int kCombine[] = {0, 6, 7, 8, 9, 3, 4, 5};

bool IsBitwise(int operation) { return operation >= kAnd; }
bool IsMinMax(int operation) { return operation == kMin || operation == kMax; }

// Subnormal numbers become zero.
float Flush(float value) {
  return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.f, value) : value;
}

uint32_t AddF32(uint32_t old, uint32_t value) {
  const float sum = Flush(std::bit_cast<float>(old)) + Flush(std::bit_cast<float>(value));
  return std::isnan(sum) ? kNanF32 : std::bit_cast<uint32_t>(Flush(sum));
}

uint64_t AddF64(uint64_t old, uint64_t value) {
  return std::bit_cast<uint64_t>(std::bit_cast<double>(old) + std::bit_cast<double>(value));
}

// f16 and bf16, without a flush. The lesser of +0 and -0 is -0; a NaN loses against a number.
uint16_t CombineHalf(const Reduction& reduction, uint16_t old, uint16_t value) {
  const bool brain = reduction.type == Type::kBF16;
  const float a = brain ? FloatOfBF16(old) : FloatOfF16(old);
  const float b = brain ? FloatOfBF16(value) : FloatOfF16(value);
  if (reduction.operation == kAdd) return brain ? BF16OfFloat(a + b) : F16OfFloat(a + b);
  if (std::isnan(a)) return std::isnan(b) ? kNanF16 : value;
  if (std::isnan(b)) return old;
  const bool old_is_less = a != b ? a < b : std::signbit(a);
  return old_is_less == (reduction.operation == kMin) ? old : value;
}

uint64_t Combine(const Reduction& reduction, uint64_t old, uint64_t value) {
  switch (reduction.type) {
    case Type::kF16:
    case Type::kBF16:
      return CombineHalf(reduction, static_cast<uint16_t>(old), static_cast<uint16_t>(value));
    case Type::kF32: return AddF32(static_cast<uint32_t>(old), static_cast<uint32_t>(value));
    case Type::kF64: return AddF64(old, value);
    default: return CombineValues(kCombine[reduction.operation], reduction.type, old, value, 0);
  }
}

}  // namespace

Reduction TakeReduction(Modifiers& modifiers) {
  return {.operation =
              modifiers.TakeOneOf({"add", "min", "max", "inc", "dec", "and", "or", "xor"})};
}

bool IsReduction(const Reduction& reduction, bool global) {
  const int operation = reduction.operation;
  switch (reduction.type) {
    case Type::kU32: return !IsBitwise(operation);
    case Type::kS32: return operation == kAdd || IsMinMax(operation);
    case Type::kB32: return IsBitwise(operation);
    case Type::kU64: return operation == kAdd || (global && IsMinMax(operation));
    case Type::kS64: return global && IsMinMax(operation);
    case Type::kB64: return global && IsBitwise(operation);
    case Type::kF16:
    case Type::kBF16: return global && (operation == kAdd || IsMinMax(operation));
    case Type::kF32:
    case Type::kF64: return global && operation == kAdd;
    default: return false;
  }
}

Reduction TensorReduction(int operation, int tensor_type) {
  // FLOAT64 has no reduction here.
  constexpr Type kTypes[] = {Type::kNone, Type::kNone, Type::kU32, Type::kS32,  Type::kU64,
                             Type::kS64,  Type::kF16,  Type::kF32, Type::kNone, Type::kBF16};
  Type type = tensor_type < 10 ? kTypes[tensor_type] : Type::kNone;
  if (IsBitwise(operation) && !IsFloat(type)) {
    type = Bytes(type) == 4 ? Type::kB32 : Bytes(type) == 8 ? Type::kB64 : Type::kNone;
  }
  const Reduction reduction{operation, type};
  return IsReduction(reduction, true) ? reduction : Reduction{operation, Type::kNone};
}

void Reduce(const Reduction& reduction, std::byte* to, const std::byte* from, uint32_t bytes) {
  const int size = Bytes(reduction.type);
  for (uint32_t at = 0; at < bytes; at += size) {
    uint64_t old = 0, value = 0;
    std::memcpy(&old, to + at, size);
    std::memcpy(&value, from + at, size);
    const uint64_t result = Combine(reduction, old, value);
    std::memcpy(to + at, &result, size);
  }
}

}  // namespace ptx
