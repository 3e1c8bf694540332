#include "kernels/base/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "absl/strings/str_format.h"

namespace agmm {

int64_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

absl::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kBF16: return "bf16";
    case DType::kF16: return "f16";
  }
  return "?";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    if (name == Name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("dtype \"%s\" is not known; use f32, bf16 or f16", name));
}

uint16_t F32ToBF16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float BF16ToF32(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The compiler's _Float16 converts in hardware where there is F16C and in libgcc where not;
// both round to nearest even.
uint16_t F32ToF16(float value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }
float F16ToF32(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }

namespace {

// F32ToBF16 without a branch, which the compiler can vectorize.
inline uint16_t NarrowToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet = bits | 0x400000;
  return static_cast<uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
}

// The same conversions in bulk: several times faster where the compiler may use AVX2 and F16C.
#define AGMM_HALF_LOOPS(name, attributes)                                          \
  attributes void FromF16##name(const uint16_t* from, float* to, int64_t count) {  \
    for (int64_t i = 0; i < count; ++i)                                            \
      to[i] = static_cast<float>(std::bit_cast<_Float16>(from[i]));                \
  }                                                                                \
  attributes void ToF16##name(const float* from, uint16_t* to, int64_t count) {    \
    for (int64_t i = 0; i < count; ++i)                                            \
      to[i] = std::bit_cast<uint16_t>(static_cast<_Float16>(from[i]));             \
  }                                                                                \
  attributes void FromBF16##name(const uint16_t* from, float* to, int64_t count) { \
    for (int64_t i = 0; i < count; ++i)                                            \
      to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);          \
  }                                                                                \
  attributes void ToBF16##name(const float* from, uint16_t* to, int64_t count) {   \
    for (int64_t i = 0; i < count; ++i) to[i] = NarrowToBF16(from[i]);             \
  }
AGMM_HALF_LOOPS(Plain, )
#ifdef __x86_64__
AGMM_HALF_LOOPS(Fast, __attribute__((target("avx2,f16c"))))
const bool kFast = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
#else
AGMM_HALF_LOOPS(Fast, )
constexpr bool kFast = false;
#endif
#undef AGMM_HALF_LOOPS

}  // namespace

void ConvertToF32(DType dtype, const void* from, float* to, int64_t count) {
  const auto* half = static_cast<const uint16_t*>(from);
  switch (dtype) {
    case DType::kF32:
      if (from != to) std::memcpy(to, from, count * sizeof(float));
      return;
    case DType::kBF16:
      return kFast ? FromBF16Fast(half, to, count) : FromBF16Plain(half, to, count);
    case DType::kF16: return kFast ? FromF16Fast(half, to, count) : FromF16Plain(half, to, count);
  }
}

void ConvertFromF32(DType dtype, const float* from, void* to, int64_t count) {
  auto* half = static_cast<uint16_t*>(to);
  switch (dtype) {
    case DType::kF32:
      if (from != to) std::memcpy(to, from, count * sizeof(float));
      return;
    case DType::kBF16:
      return kFast ? ToBF16Fast(from, half, count) : ToBF16Plain(from, half, count);
    case DType::kF16: return kFast ? ToF16Fast(from, half, count) : ToF16Plain(from, half, count);
  }
}

}  // namespace agmm
