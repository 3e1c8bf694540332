#include "tests/model/ptx/matrix/fragments.h"

#include <algorithm>

namespace ptx {
namespace {

// The compiler makes vector instructions of this at every level of optimization.
using Eight = float __attribute__((vector_size(32)));

void Load(Eight& values, const float* at) { std::memcpy(&values, at, sizeof values); }
void Store(const Eight& values, float* at) { std::memcpy(at, &values, sizeof values); }

bool IsRegister(const Operand& part) {
  return part.kind == Operand::kRegister && Bytes(part.type) == 4;
}

// The one NaN that tensor cores write.
void CanonicalizeNans(float* values, int count) {
  for (int i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<uint32_t>(values[i]);
    const uint32_t result = (bits & 0x7fffffff) > 0x7f800000 ? kNanF32 : bits;
    values[i] = std::bit_cast<float>(result);
  }
}

}  // namespace

bool HasRegisters(const Operand& operand, int count) {
  const Operand* const parts = PartsOf(operand);
  return PartCount(operand) == count && std::all_of(parts, parts + count, IsRegister);
}

bool HasSources(const Operand& operand, int count) {
  const Operand* const parts = PartsOf(operand);
  return PartCount(operand) == count && std::all_of(parts, parts + count, [](const Operand& part) {
           // A decimal literal has the bits of a f64.
           return IsRegister(part) || (part.kind == Operand::kConstant && part.type != Type::kF64);
         });
}

void ReadFragmentA(const Warp& warp, const Operand& registers, Type type, int depth, float* a) {
  const int width = 4 / Bytes(type);  // elements in a register
  for (int i = 0; i < PartCount(registers); ++i) {
    const Lanes& lanes = Source(warp, PartsOf(registers)[i]);
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4 + 8 * (i & 1), k = width * (4 * (i >> 1) + lane % 4);
      const auto bits = static_cast<uint32_t>(lanes[lane]);
      ToFloats(type, reinterpret_cast<const std::byte*>(&bits), width, a + row * depth + k);
    }
  }
}

void ReadFragmentB(const Warp& warp, const Operand& registers, Type type, int depth, float* b) {
  const int width = 4 / Bytes(type);
  for (int i = 0; i < PartCount(registers); ++i) {
    const Lanes& lanes = Source(warp, PartsOf(registers)[i]);
    for (int lane = 0; lane < 32; ++lane) {
      const int column = lane / 4, k = width * (4 * i + lane % 4);
      const auto bits = static_cast<uint32_t>(lanes[lane]);
      float values[4];
      ToFloats(type, reinterpret_cast<const std::byte*>(&bits), width, values);
      for (int j = 0; j < width; ++j) b[(k + j) * 8 + column] = values[j];
    }
  }
}

// A pair of neighbours of a row is in one register of f16 or in two of f32. Pairs alternate between
// the upper and the lower eight rows, then go on by eight columns.
void ReadAccumulators(const Warp& warp, const Operand& registers, Type type, int columns,
                      float* d) {
  const Operand* const parts = PartsOf(registers);
  for (int pair = 0; pair < columns / 4; ++pair) {
    float* const corner = d + (pair & 1) * 8 * columns + (pair >> 1) * 8;
    if (type == Type::kF32) {
      const Lanes& left = Source(warp, parts[2 * pair]);
      const Lanes& right = Source(warp, parts[2 * pair + 1]);
      for (int lane = 0; lane < 32; ++lane) {
        const uint64_t both = left[lane] | right[lane] << 32;
        std::memcpy(corner + lane / 4 * columns + lane % 4 * 2, &both, sizeof both);
      }
    } else {
      const Lanes& both = Source(warp, parts[pair]);
      for (int lane = 0; lane < 32; ++lane) {
        float* const to = corner + lane / 4 * columns + lane % 4 * 2;
        to[0] = FloatOfF16(static_cast<uint16_t>(both[lane]));
        to[1] = FloatOfF16(static_cast<uint16_t>(both[lane] >> 16));
      }
    }
  }
}

void WriteAccumulators(Warp& warp, const Operand& registers, Type type, int columns,
                       const float* d) {
  const Operand* const parts = PartsOf(registers);
  for (int pair = 0; pair < columns / 4; ++pair) {
    const float* const corner = d + (pair & 1) * 8 * columns + (pair >> 1) * 8;
    if (type == Type::kF32) {
      Lanes& left = Target(warp, parts[2 * pair]);
      Lanes& right = Target(warp, parts[2 * pair + 1]);
      for (int lane = 0; lane < 32; ++lane) {
        uint64_t both;
        std::memcpy(&both, corner + lane / 4 * columns + lane % 4 * 2, sizeof both);
        left[lane] = static_cast<uint32_t>(both);
        right[lane] = both >> 32;
      }
    } else {
      Lanes& both = Target(warp, parts[pair]);
      for (int lane = 0; lane < 32; ++lane) {
        const float* const from = corner + lane / 4 * columns + lane % 4 * 2;
        both[lane] = F16OfFloat(from[0]) | uint32_t{F16OfFloat(from[1])} << 16;
      }
    }
  }
}

void MultiplyAdd(const float* a, const float* b, int depth, int columns, float* d) {
  for (int column = 0; column < columns; column += 8) {
    for (int row = 0; row < kWarpRows; row += 4) {
      float* const to = d + row * columns + column;
      Eight sum0, sum1, sum2, sum3, values;
      Load(sum0, to);
      Load(sum1, to + columns);
      Load(sum2, to + 2 * columns);
      Load(sum3, to + 3 * columns);
      const float* const rows = a + row * depth;
      for (int k = 0; k < depth; ++k) {
        Load(values, b + k * columns + column);
        sum0 += rows[k] * values;
        sum1 += rows[depth + k] * values;
        sum2 += rows[2 * depth + k] * values;
        sum3 += rows[3 * depth + k] * values;
      }
      Store(sum0, to);
      Store(sum1, to + columns);
      Store(sum2, to + 2 * columns);
      Store(sum3, to + 3 * columns);
    }
  }
  CanonicalizeNans(d, kWarpRows * columns);
}

}  // namespace ptx
