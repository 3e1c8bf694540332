// Products of a warpgroup out of shared memory (wgmma). Macros name the registers, because PTX
// wants each one in the text.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/sm90/elements.h"

// clang-format off
#define AGMM_SUMS_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define AGMM_SUMS_128 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, " \
  "%38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, " \
  "%56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, " \
  "%74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, " \
  "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, " \
  "%109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
  "%124, %125, %126, %127"
#define AGMM_SUM(i) "+f"(sums[i])
#define AGMM_8_SUMS(i) AGMM_SUM(i), AGMM_SUM(i + 1), AGMM_SUM(i + 2), AGMM_SUM(i + 3), \
  AGMM_SUM(i + 4), AGMM_SUM(i + 5), AGMM_SUM(i + 6), AGMM_SUM(i + 7)
#define AGMM_64_SUMS(i) AGMM_8_SUMS(i), AGMM_8_SUMS(i + 8), AGMM_8_SUMS(i + 16), AGMM_8_SUMS(i + 24), \
  AGMM_8_SUMS(i + 32), AGMM_8_SUMS(i + 40), AGMM_8_SUMS(i + 48), AGMM_8_SUMS(i + 56)
// clang-format on

namespace agmm::sm90 {

// The place of a matrix in shared memory with a swizzle of 128 bytes. `leading` and `stride` are
// bytes between groups of 8 rows and between spans of 128 bytes: which is which depends on the
// major dimension (PTX ISA, matrix descriptor).
__device__ __forceinline__ uint64_t MatrixDescriptor(uint32_t at, int leading, int stride) {
  return static_cast<uint64_t>((at & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
         static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62;
}

// The sums of the warpgroup may be read and written by its instructions before this; then by wgmma
// alone.
template <int kCount>
__device__ __forceinline__ void BeginProducts(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
template <int kCount>
__device__ __forceinline__ void EndProducts(float (&sums)[kCount]) {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
// Waits until all but the newest kLeft groups of products have ended.
template <int kLeft, int kCount>
__device__ __forceinline__ void WaitForProducts(float (&sums)[kCount]) {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

#define AGMM_WGMMA(shape, names, sums_list, a_at, b_at, accumulate_at, tail)                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #accumulate_at                             \
               ", 0;\nwgmma.mma_async.sync.aligned." shape " {" names "}, %" #a_at ", %" #b_at \
               ", p, " tail ";\n}"                                                             \
               : sums_list                                                                     \
               : "l"(a), "l"(b), "r"(accumulate))
#define AGMM_WGMMA_128(types, tail) \
  AGMM_WGMMA("m64n128" types, AGMM_SUMS_64, AGMM_64_SUMS(0), 64, 65, 66, tail)
#define AGMM_WGMMA_256(types, tail)                                                            \
  AGMM_WGMMA("m64n256" types, AGMM_SUMS_128, AGMM_64_SUMS(0) AGMM_COMMA AGMM_64_SUMS(64), 128, \
             129, 130, tail)
#define AGMM_COMMA ,

// sums = A * B, added to the sums unless `accumulate` is 0: 64 rows of A, 32 bytes of K, and the
// columns of B for which there are sums: 2 for each. A is K-major; B is MN-major for types of 16
// bits, else K-major.
template <typename Element, int kCount>
__device__ __forceinline__ void Multiply(float (&sums)[kCount], uint64_t a, uint64_t b,
                                         int accumulate) {
  static_assert(kCount == 64 || kCount == 128);
  if constexpr (std::is_same_v<Element, F16>) {
    if constexpr (kCount == 64) AGMM_WGMMA_128("k16.f32.f16.f16", "1, 1, 0, 1");
    if constexpr (kCount == 128) AGMM_WGMMA_256("k16.f32.f16.f16", "1, 1, 0, 1");
  } else if constexpr (std::is_same_v<Element, BF16>) {
    if constexpr (kCount == 64) AGMM_WGMMA_128("k16.f32.bf16.bf16", "1, 1, 0, 1");
    if constexpr (kCount == 128) AGMM_WGMMA_256("k16.f32.bf16.bf16", "1, 1, 0, 1");
  } else {
    static_assert(std::is_same_v<Element, E4M3>);
    if constexpr (kCount == 64) AGMM_WGMMA_128("k32.f32.e4m3.e4m3", "1, 1");
    if constexpr (kCount == 128) AGMM_WGMMA_256("k32.f32.e4m3.e4m3", "1, 1");
  }
}

}  // namespace agmm::sm90
