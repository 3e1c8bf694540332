// The rule for denormals in bf16: they count as zero, in operands, sums and results. Instructions
// for bf16 (tdpbf16ps, vdpbf16ps, bfdot) always follow it. This class makes f32 instructions follow
// it when they compute bf16 products and sums.
#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace agmm {

// If `on`, f32 instructions of this thread treat denormals as zero until destruction.
class ZeroDenormals {
 public:
  explicit ZeroDenormals(bool on) : before_(Get()) {
    if (on) Set(before_ | kBits);
  }
  ~ZeroDenormals() { Set(before_); }
  ZeroDenormals(const ZeroDenormals&) = delete;
  ZeroDenormals& operator=(const ZeroDenormals&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint64_t kBits = 0x8040;  // MXCSR: flush to zero, denormals are zeros
  static uint64_t Get() { return _mm_getcsr(); }
  static void Set(uint64_t bits) { _mm_setcsr(static_cast<uint32_t>(bits)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kBits = 1 << 24;  // FPCR.FZ: inputs and results
  static uint64_t Get() {
    uint64_t bits;
    asm volatile("mrs %0, fpcr" : "=r"(bits));
    return bits;
  }
  static void Set(uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits) : "memory"); }
#else
#error "denormals of bf16 must count as zero on every processor"
#endif

  const uint64_t before_;
};

}  // namespace agmm
