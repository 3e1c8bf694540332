#include "kernels/base/dtype.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_format.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace agmm {

absl::string_view Name(DType dtype) {
  for (const DTypeTraits& traits : kDTypeTraits) {
    if (traits.dtype == dtype) return traits.name;
  }
  return "?";
}

absl::StatusOr<DType> ParseDType(absl::string_view name) {
  for (const DTypeTraits& traits : kDTypeTraits) {
    if (name == traits.name) return traits.dtype;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("dtype \"%s\" is not known; use f32, bf16 or f16", name));
}

namespace {

using WidenLoop = void(const uint16_t* from, float* to, int64_t count);
using NarrowLoop = void(const float* from, uint16_t* to, int64_t count);

// The conversions in bulk.
struct HalfLoops {
  WidenLoop* from_f16;
  NarrowLoop* to_f16;
  WidenLoop* from_bf16;
  NarrowLoop* to_bf16;
};

#define AGMM_BF16_LOOPS(name, attributes)                                          \
  attributes void FromBF16##name(const uint16_t* from, float* to, int64_t count) { \
    for (int64_t i = 0; i < count; ++i) to[i] = BF16ToF32(from[i]);                \
  }                                                                                \
  attributes void ToBF16##name(const float* from, uint16_t* to, int64_t count) {   \
    for (int64_t i = 0; i < count; ++i) to[i] = F32ToBF16(from[i]);                \
  }

AGMM_BF16_LOOPS(Plain, )
// Runs in hardware on aarch64, and in libgcc on x86 without F16C.
void FromF16Plain(const uint16_t* from, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<float>(std::bit_cast<_Float16>(from[i]));
}
void ToF16Plain(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    to[i] = std::bit_cast<uint16_t>(static_cast<_Float16>(from[i]));
}
constexpr HalfLoops kPlain = {FromF16Plain, ToF16Plain, FromBF16Plain, ToBF16Plain};

#ifdef __x86_64__

// Several times faster than the plain loops, because compilers do not vectorize f16.
#define AGMM_FAST __attribute__((target("avx2,f16c")))
AGMM_BF16_LOOPS(Fast, AGMM_FAST)
AGMM_FAST void FromF16Fast(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
  }
  for (; i < count; ++i) to[i] = _cvtsh_ss(from[i]);
}
AGMM_FAST void ToF16Fast(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
  for (; i < count; ++i) to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}

const HalfLoops& Loops() {
  // clang 16 does not know "f16c"; every processor with AVX2 has these instructions, too.
  static const bool fast = __builtin_cpu_supports("avx2");
  static constexpr HalfLoops kFast = {FromF16Fast, ToF16Fast, FromBF16Fast, ToBF16Fast};
  return fast ? kFast : kPlain;
}

#else
const HalfLoops& Loops() { return kPlain; }
#endif

}  // namespace

void ConvertToF32(DType dtype, const void* from, float* to, int64_t count) {
  if (dtype == DType::kF32) {
    // memcpy does not allow null pointers, which empty containers have.
    if (from != to && count > 0) std::memcpy(to, from, count * sizeof(float));
    return;
  }
  WidenLoop* const loop = dtype == DType::kBF16 ? Loops().from_bf16 : Loops().from_f16;
  loop(static_cast<const uint16_t*>(from), to, count);
}

void ConvertFromF32(DType dtype, const float* from, void* to, int64_t count) {
  if (dtype == DType::kF32) {
    if (from != to && count > 0) std::memcpy(to, from, count * sizeof(float));
    return;
  }
  NarrowLoop* const loop = dtype == DType::kBF16 ? Loops().to_bf16 : Loops().to_f16;
  loop(from, static_cast<uint16_t*>(to), count);
}

}  // namespace agmm
