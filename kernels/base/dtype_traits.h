// The element types of matrices, and the conversions of single elements, for host and device code.
// The conversions use integer operations, because the instructions of GPUs and of processors
// produce different NaNs. Bulk conversions are in dtype.h.
//
// Needs only the standard library and host_device.h.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/base/host_device.h"

namespace agmm {

enum class DType : int { kF32 = 1, kBF16 = 2, kF16 = 3 };

struct DTypeTraits {
  DType dtype;
  const char* name;
  int bytes;               // of an element
  int precision_bits;      // of the significand, with the leading one
  uint32_t infinity_bits;  // the exponent's bits, all set: infinity; with other bits, NaN
  const char* largest;     // finite value, to two digits or more
};

inline constexpr DTypeTraits kDTypeTraits[] = {
    {DType::kF32, "f32", 4, 24, 0x7f800000, "3.4e38"},
    {DType::kBF16, "bf16", 2, 8, 0x7f80, "3.4e38"},
    {DType::kF16, "f16", 2, 11, 0x7c00, "65504"},
};
// `dtype` is one of the enumerators.
constexpr const DTypeTraits& TraitsOf(DType dtype) {
  return kDTypeTraits[static_cast<int>(dtype) - 1];
}
static_assert(TraitsOf(DType::kF32).dtype == DType::kF32);
static_assert(TraitsOf(DType::kBF16).dtype == DType::kBF16);
static_assert(TraitsOf(DType::kF16).dtype == DType::kF16);

// Bytes of an element: 4, 2, 2.
AGMM_HOST_DEVICE constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

AGMM_HOST_DEVICE inline uint32_t BitsOf(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
#endif
}
AGMM_HOST_DEVICE inline float FloatOf(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
#endif
}

// Round to nearest even; NaN stays NaN and becomes quiet; out of range becomes infinity. Without a
// branch, so that compilers can vectorize it.
AGMM_HOST_DEVICE inline uint16_t F32ToBF16(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet = bits | 0x400000;
  return static_cast<uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}
AGMM_HOST_DEVICE inline float BF16ToF32(uint16_t bits) {
  return FloatOf(static_cast<uint32_t>(bits) << 16);
}

// Rounds by the same rules as F32ToBF16, with branches.
AGMM_HOST_DEVICE inline uint16_t F32ToF16(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  // Halfway between the largest f16 and the next power of two, or above.
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
  // A carry into the exponent gives the right result.
  if (dropped > half || (dropped == half && half != 0 && (kept & 1) != 0)) ++kept;
  return static_cast<uint16_t>(sign | kept);
}
AGMM_HOST_DEVICE inline float F16ToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f)
    return FloatOf(sign | 0x7f800000 | (mantissa == 0 ? 0 : mantissa << 13 | 0x400000));
  if (exponent != 0) return FloatOf(sign | ((exponent + 112) << 23) | mantissa << 13);
  if (mantissa == 0) return FloatOf(sign);
  uint32_t power = 113;
  while ((mantissa & 0x400) == 0) {
    mantissa <<= 1;
    --power;
  }
  return FloatOf(sign | power << 23 | (mantissa & 0x3ff) << 13);
}

}  // namespace agmm
