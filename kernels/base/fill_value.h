// The values of a fill. Element (row, col) of a tensor with `cols` columns is a function of the
// seed and of index = row * cols + col alone, so it is the same on every mesh, sharding and
// device:
//
//   bits      = mix(seed + (index + 1) * 0x9e3779b97f4a7c15): splitmix64, its (index + 1)-th
//   mix(z)    : z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9; z = (z ^ z >> 27) * 0x94d049bb133111eb;
//               z ^ z >> 31
//   UNIFORM   : (bits >> 40) * 2^-23 - 1, rounded to the dtype, at most its largest value below 1
//   INTEGERS  : ((bits >> 32) * 9 >> 32) - 4
//   CONSTANT  : value, rounded to f32 and then to the dtype
// all of it modulo 2^64.
//
// CPU loops and GPU kernels share this code, because their results must be equal bit by bit: the
// header needs only the standard library and host_device.h, and every operation in it is exact.
#pragma once

#include <cstdint>

#include "kernels/base/host_device.h"

namespace agmm {

enum class FillKind : int { kUniform = 1, kIntegers = 2, kConstant = 3 };

struct FillSpec {
  FillKind kind = FillKind::kUniform;
  uint64_t seed = 0;
  double value = 0;  // of kConstant
};

// Step of the argument of mix from one index to the next.
inline constexpr uint64_t kFillStep = 0x9e3779b97f4a7c15;

AGMM_HOST_DEVICE inline uint64_t MixFill(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// The argument of mix for the element before `index`.
AGMM_HOST_DEVICE inline uint64_t FillState(uint64_t seed, int64_t index) {
  return seed + static_cast<uint64_t>(index) * kFillStep;
}

// The value of UNIFORM, not rounded yet. `most`: LargestBelowOne (fill.h) of the dtype.
AGMM_HOST_DEVICE inline float UniformOf(uint64_t bits, float most) {
  const float value = static_cast<float>(static_cast<int32_t>(bits >> 40)) * 0x1p-23f - 1.0f;
  return most < value ? most : value;
}

// The value of INTEGERS.
AGMM_HOST_DEVICE inline float IntegerOf(uint64_t bits) {
  return static_cast<float>(static_cast<int32_t>((bits >> 32) * 9 >> 32) - 4);
}

// The value of element `index`, not rounded to the dtype yet.
AGMM_HOST_DEVICE inline float FillValue(const FillSpec& fill, float most, int64_t index) {
  if (fill.kind == FillKind::kConstant) return static_cast<float>(fill.value);
  const uint64_t bits = MixFill(FillState(fill.seed, index + 1));
  return fill.kind == FillKind::kUniform ? UniformOf(bits, most) : IntegerOf(bits);
}

}  // namespace agmm
