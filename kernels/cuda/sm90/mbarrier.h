// mbarriers in shared memory. An address is the 32 bits that shared memory has in the CTA.
#pragma once

#include <cstdint>

namespace agmm::sm90 {

__device__ __forceinline__ uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void InitMbarrier(uint32_t mbarrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(mbarrier), "r"(arrivals) : "memory");
}

// Makes the inits of this thread visible to bulk copies and to the threads of a following barrier.
__device__ __forceinline__ void FenceMbarrierInits() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void Arrive(uint32_t mbarrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(mbarrier) : "memory");
}

// Arrives, and makes the phase wait for this number of bytes of bulk copies. The bytes outside of a
// matrix count, too.
__device__ __forceinline__ void ArriveExpectingBytes(uint32_t mbarrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(mbarrier), "r"(bytes)
               : "memory");
}

// Waits for the end of the phase with this parity. Parity 1 passes at once on a new mbarrier.
__device__ __forceinline__ void WaitForPhase(uint32_t mbarrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred over;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
      "@!over bra again;\n"
      "}" ::"r"(mbarrier),
      "r"(parity)
      : "memory");
}

}  // namespace agmm::sm90
