// Matrices spread over the registers of a warp, as the fragments of mma and wgmma, and their
// products.
//
// A warp has 16 rows of A and D. A matrix is an array of f32, row by row.
#pragma once

#include <bit>
#include <cstddef>
#include <cstring>

#include "tests/model/ptx/arithmetic/floats.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {

// The most rows of K and columns of N that an instruction has.
constexpr int kMaxDepth = 32, kMaxColumns = 256, kWarpRows = 16;

// Rows of K in an instruction whose matrix A has four registers: 32 bytes.
inline int DepthOf(Type element) { return 32 / Bytes(element); }

template <typename Element, typename Convert>
void ConvertEach(const std::byte* elements, int count, float* values, Convert convert) {
  for (int i = 0; i < count; ++i) {
    Element element;
    std::memcpy(&element, elements + i * sizeof element, sizeof element);
    values[i] = convert(element);
  }
}

// Converts `count` elements of an f16, bf16, tf32 or FP8 type to f32. Tensor cores drop the lowest
// 13 bits of tf32.
inline void ToFloats(Type type, const std::byte* elements, int count, float* values) {
  switch (type) {
    case Type::kF16: return ConvertEach<uint16_t>(elements, count, values, FloatOfF16);
    case Type::kBF16: return ConvertEach<uint16_t>(elements, count, values, FloatOfBF16);
    case Type::kE4M3: return ConvertEach<uint8_t>(elements, count, values, FloatOfE4M3);
    case Type::kE5M2: return ConvertEach<uint8_t>(elements, count, values, FloatOfE5M2);
    case Type::kTF32:
      return ConvertEach<uint32_t>(elements, count, values, [](uint32_t bits) {
        return std::bit_cast<float>(bits & ~0x1fffu);
      });
    default: throw Stop("a matrix of a type that the model does not multiply");
  }
}

// A vector operand's registers, or the operand itself.
inline const Operand* PartsOf(const Operand& operand) {
  return operand.kind == Operand::kVector ? operand.parts.data() : &operand;
}
inline int PartCount(const Operand& operand) {
  return operand.kind == Operand::kVector ? static_cast<int>(operand.parts.size()) : 1;
}
// Returns true if the operand has this many parts, and all are registers of 32 bits. A source may
// have constants.
bool HasRegisters(const Operand& operand, int count);
bool HasSources(const Operand& operand, int count);

// Reads 16 x `depth` of A: two registers for 16 bytes of K, four for 32.
void ReadFragmentA(const Warp& warp, const Operand& registers, Type type, int depth, float* a);
// Reads `depth` x 8 of B: one register for 16 bytes of K, two for 32.
void ReadFragmentB(const Warp& warp, const Operand& registers, Type type, int depth, float* b);
// Reads or writes 16 x `columns` of C or D, as f32 (columns / 2 registers) or f16 (columns / 4).
void ReadAccumulators(const Warp& warp, const Operand& registers, Type type, int columns, float* d);
void WriteAccumulators(Warp& warp, const Operand& registers, Type type, int columns,
                       const float* d);

// d += a * b, for 16 rows, in the order of K. `columns` is a multiple of 8.
void MultiplyAdd(const float* a, const float* b, int depth, int columns, float* d);

}  // namespace ptx
