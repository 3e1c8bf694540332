#include "kernels/cpu/convert.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace agmm {
namespace {

#if defined(__x86_64__)
// The compiler's own f16 conversions are library calls unless the whole build targets F16C.
__attribute__((target("avx,f16c"))) void WidenF16(const uint16_t* from, float* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(half));
  }
  for (; i < count; ++i) to[i] = _cvtsh_ss(from[i]);
}

__attribute__((target("avx,f16c"))) void NarrowF16(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
  for (; i < count; ++i) to[i] = _cvtss_sh(from[i], _MM_FROUND_TO_NEAREST_INT);
}

bool HasF16C() {
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has;
}
#endif

void Widen(DType dtype, const void* from, float* to, int64_t count) {
#if defined(__x86_64__)
  if (dtype == DType::kF16 && HasF16C())
    return WidenF16(static_cast<const uint16_t*>(from), to, count);
#endif
  ConvertToF32(dtype, from, to, count);
}

void Narrow(DType dtype, const float* from, void* to, int64_t count) {
#if defined(__x86_64__)
  if (dtype == DType::kF16 && HasF16C()) return NarrowF16(from, static_cast<uint16_t*>(to), count);
#endif
  ConvertFromF32(dtype, from, to, count);
}

}  // namespace

void CopyRows(ConstMatrix from, Matrix to, int64_t rows, int64_t cols) {
  const int64_t row_bytes = cols * SizeOf(from.dtype);
  if (from.dtype == to.dtype && from.pitch_bytes == row_bytes && to.pitch_bytes == row_bytes) {
    std::memcpy(to.data, from.data, rows * row_bytes);
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* source = from.data + row * from.pitch_bytes;
    std::byte* target = to.data + row * to.pitch_bytes;
    if (from.dtype == to.dtype) {
      std::memcpy(target, source, row_bytes);
    } else if (to.dtype == DType::kF32) {
      Widen(from.dtype, source, reinterpret_cast<float*>(target), cols);
    } else {
      Narrow(to.dtype, reinterpret_cast<const float*>(source), target, cols);
    }
  }
}

void AddRows(ConstMatrix from, Matrix into, int64_t rows, int64_t cols) {
  constexpr int64_t kBatch = 512;
  float wide[kBatch];
  for (int64_t row = 0; row < rows; ++row) {
    const std::byte* source = from.data + row * from.pitch_bytes;
    float* target = reinterpret_cast<float*>(into.data + row * into.pitch_bytes);
    for (int64_t begin = 0; begin < cols; begin += kBatch) {
      const int64_t count = std::min(kBatch, cols - begin);
      const std::byte* batch = source + begin * SizeOf(from.dtype);
      const float* addend = reinterpret_cast<const float*>(batch);
      if (from.dtype != DType::kF32) {
        Widen(from.dtype, batch, wide, count);
        addend = wide;
      }
      for (int64_t i = 0; i < count; ++i) target[begin + i] += addend[i];
    }
  }
}

}  // namespace agmm
