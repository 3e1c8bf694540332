// The types of elements, and how sums of f32 become results.
#pragma once

#include <cstdint>

namespace agmm::sm90 {

// `Bits` is the storage of one element.
struct F16 {
  using Bits = uint16_t;
};
struct BF16 {
  using Bits = uint16_t;
};
struct E4M3 {
  using Bits = uint8_t;
};
struct F32 {
  using Bits = uint32_t;
};

// Two neighbouring elements of C, rounded to the nearest, the first one in the low bits.
template <typename Element>
struct Pair;
template <>
struct Pair<F16> {
  using Word = uint32_t;
  static __device__ __forceinline__ Word Of(float first, float second) {
    Word word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
  }
};
template <>
struct Pair<BF16> {
  using Word = uint32_t;
  static __device__ __forceinline__ Word Of(float first, float second) {
    Word word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
    return word;
  }
};
template <>
struct Pair<F32> {
  using Word = uint64_t;
  static __device__ __forceinline__ Word Of(float first, float second) {
    // Not by __float_as_uint: nvcc would then keep the sums in integer registers and copy them
    // while a wgmma may write them.
    Word word;
    asm("mov.b64 %0, {%1, %2};" : "=l"(word) : "f"(first), "f"(second));
    return word;
  }
};

}  // namespace agmm::sm90
