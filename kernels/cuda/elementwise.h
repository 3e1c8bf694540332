// Bodies for one element of the kernels in elementwise.cu, for device and host alike. A host that
// runs a body for each element gets the kernel's bits; so does kernels/base/dtype, of whose
// conversions these are the same, written by bits because the units of a GPU give other NaNs.
//
// Needs the standard library and fill_value.h alone.
#pragma once

#include <cstdint>

#include "kernels/base/fill_value.h"

namespace agmm::elementwise {

// The values of DType (kernels/base/dtype.h).
enum class Type : int { kF32 = 1, kBF16 = 2, kF16 = 3 };

// Elements in rows that are `pitch_bytes` apart. Null `data`: none.
struct Matrix {
  void* data = nullptr;
  int64_t pitch_bytes = 0;
  Type type = Type::kF32;
};

// The one parameter of each kernel, whose name stands first.
// agmm_convert: to[row][col] = from[row][col]. The types are equal, or one is f32. The matrices are
// the same or do not overlap.
struct Convert {
  Matrix from, to;
  int64_t rows = 0, cols = 0;
};
// agmm_reduce: into[row][col] += from[row][col] in f32; then out = into, converted, where there is
// one. `into` is f32. `out` may be `into`.
struct Reduce {
  Matrix from, into, out;
  int64_t rows = 0, cols = 0;
};
// agmm_fill: to[row][col] = the value of index first_index + row * index_stride + col.
struct Fill {
  Matrix to;
  int64_t rows = 0, cols = 0;
  FillSpec fill;
  float most = 0;  // LargestBelowOne of the type
  int64_t first_index = 0, index_stride = 0;
};

namespace internal {

union Word {
  float value;
  uint32_t bits;
};
AGMM_HOST_DEVICE inline uint32_t BitsOf(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  Word word;
  word.value = value;
  return word.bits;
#endif
}
AGMM_HOST_DEVICE inline float ValueOf(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  Word word;
  word.bits = bits;
  return word.value;
#endif
}

}  // namespace internal

// Round to nearest even; NaN stays NaN and becomes quiet; out of range becomes infinity.
AGMM_HOST_DEVICE inline uint16_t ToBF16(float value) {
  const uint32_t bits = internal::BitsOf(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>((bits | 0x400000) >> 16);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
AGMM_HOST_DEVICE inline float FromBF16(uint16_t bits) {
  return internal::ValueOf(static_cast<uint32_t>(bits) << 16);
}

AGMM_HOST_DEVICE inline uint16_t ToF16(float value) {
  const uint32_t bits = internal::BitsOf(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  // From halfway between the largest f16 and the next power of two on.
  if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  uint32_t kept = 0, dropped = 0, half = 0;
  if (magnitude >= 0x38800000) {  // 2^-14, the smallest normal f16
    kept = (magnitude - 0x38000000) >> 13;
    dropped = magnitude & 0x1fff;
    half = 0x1000;
  } else if (magnitude >= 0x33000000) {  // 2^-25, half of the smallest f16
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000, shift = 126 - (magnitude >> 23);
    kept = mantissa >> shift;
    half = 1u << (shift - 1);
    dropped = mantissa & ((1u << shift) - 1);
  }
  // A carry into the exponent is right.
  if (dropped > half || (dropped == half && half != 0 && (kept & 1) != 0)) ++kept;
  return static_cast<uint16_t>(sign | kept);
}
AGMM_HOST_DEVICE inline float FromF16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 0x1f;
  uint32_t mantissa = half & 0x3ff;
  if (exponent == 0x1f) {
    return internal::ValueOf(sign | 0x7f800000 | (mantissa == 0 ? 0 : mantissa << 13 | 0x400000));
  }
  if (exponent != 0) return internal::ValueOf(sign | ((exponent + 112) << 23) | mantissa << 13);
  if (mantissa == 0) return internal::ValueOf(sign);
  uint32_t power = 113;
  while ((mantissa & 0x400) == 0) {
    mantissa <<= 1;
    --power;
  }
  return internal::ValueOf(sign | power << 23 | (mantissa & 0x3ff) << 13);
}

AGMM_HOST_DEVICE inline int64_t ElementBytes(Type type) { return type == Type::kF32 ? 4 : 2; }
AGMM_HOST_DEVICE inline void* ElementOf(const Matrix& matrix, int64_t row, int64_t col) {
  return static_cast<char*>(matrix.data) + row * matrix.pitch_bytes +
         col * ElementBytes(matrix.type);
}
AGMM_HOST_DEVICE inline float Load(const Matrix& matrix, int64_t row, int64_t col) {
  const void* const at = ElementOf(matrix, row, col);
  if (matrix.type == Type::kF32) return *static_cast<const float*>(at);
  const uint16_t bits = *static_cast<const uint16_t*>(at);
  return matrix.type == Type::kBF16 ? FromBF16(bits) : FromF16(bits);
}
AGMM_HOST_DEVICE inline void Store(float value, const Matrix& matrix, int64_t row, int64_t col) {
  void* const at = ElementOf(matrix, row, col);
  if (matrix.type == Type::kF32) {
    *static_cast<float*>(at) = value;
  } else {
    *static_cast<uint16_t*>(at) = matrix.type == Type::kBF16 ? ToBF16(value) : ToF16(value);
  }
}

AGMM_HOST_DEVICE inline void Element(const Convert& work, int64_t row, int64_t col) {
  if (work.from.type != work.to.type) return Store(Load(work.from, row, col), work.to, row, col);
  // Bits, because a signalling NaN stays one in a copy.
  const void* const from = ElementOf(work.from, row, col);
  void* const to = ElementOf(work.to, row, col);
  if (work.to.type == Type::kF32) {
    *static_cast<uint32_t*>(to) = *static_cast<const uint32_t*>(from);
  } else {
    *static_cast<uint16_t*>(to) = *static_cast<const uint16_t*>(from);
  }
}

AGMM_HOST_DEVICE inline void Element(const Reduce& work, int64_t row, int64_t col) {
  const float sum = Load(work.into, row, col) + Load(work.from, row, col);
  Store(sum, work.into, row, col);
  if (work.out.data != nullptr && work.out.data != work.into.data) Store(sum, work.out, row, col);
}

AGMM_HOST_DEVICE inline void Element(const Fill& work, int64_t row, int64_t col) {
  const int64_t index = work.first_index + row * work.index_stride + col;
  Store(FillValue(work.fill, work.most, index), work.to, row, col);
}

}  // namespace agmm::elementwise
