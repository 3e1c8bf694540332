// Matrices of f32, f16 or bf16, read and written as f32.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

namespace model {

inline float FromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

// Rounds to nearest, ties to even.
inline uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float FromF16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, rest = uint32_t{bits & 0x7fffu} << 13;
  // Exponent 31 is infinity or NaN; else a product by 2^112 moves the exponent's bias, exactly.
  const float size = rest >= 0x0f800000 ? std::bit_cast<float>(rest | 0x7f800000)
                                        : std::bit_cast<float>(rest) * 0x1p112f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(size) | sign);
}

// Rounds to nearest, ties to even.
inline uint16_t ToF16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00);
  if (size >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (size < 0x38800000) {
    // Below the normal numbers: a step of f32 just above 0.5 is one of f16 here.
    const float shifted = std::bit_cast<float>(size) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | ((size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13));
}

struct Floats {
  enum Kind { kF32, kF16, kBf16 };
  Kind kind = kF32;
  char* at = nullptr;
  int64_t row_stride = 0, column_stride = 0;  // in elements

  float Get(int64_t row, int64_t column) const {
    const int64_t index = row * row_stride + column * column_stride;
    if (kind == kF32) return Load<float>(index);
    const auto bits = Load<uint16_t>(index);
    return kind == kF16 ? FromF16(bits) : FromBf16(bits);
  }

  void Set(int64_t row, int64_t column, float value) const {
    const int64_t index = row * row_stride + column * column_stride;
    if (kind == kF32) return Store(index, value);
    Store(index, kind == kF16 ? ToF16(value) : ToBf16(value));
  }

  // All of it, row by row.
  std::vector<float> All(int64_t rows, int64_t columns) const {
    std::vector<float> values(rows * columns);
    for (int64_t i = 0; i < rows * columns; ++i) values[i] = Get(i / columns, i % columns);
    return values;
  }

 private:
  template <typename T>
  T Load(int64_t index) const {
    T value;
    std::memcpy(&value, at + index * sizeof(T), sizeof value);
    return value;
  }
  template <typename T>
  void Store(int64_t index, T value) const {
    std::memcpy(at + index * sizeof(T), &value, sizeof value);
  }
};

}  // namespace model
