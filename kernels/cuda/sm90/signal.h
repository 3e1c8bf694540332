// Slots between GPUs: 64-bit words that have the number of the epoch once something has happened.
//
// The order to keep, wherever a kernel sends:
//   each thread that has stored:  WaitForStores (not WaitForStoreReads)
//                                 CountContribution: acquire and release at the scope of the GPU
//   the last one of them:         RaiseSlot: release at the scope of the system
//   the thread that loads there:  WaitForSlot: acquire at the scope of the system
//                                 FenceAsyncGlobal: global memory, not only shared memory
//                                 LoadTile
// Each of these is needed; tests/sm90 deletes and weakens them one by one.
#pragma once

#include <cstdint>

namespace agmm::sm90 {

__device__ __forceinline__ uint64_t LoadAcquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

// True once the host has given up the launch. The word lies in pinned memory of the host, which can
// then set it although every channel of the GPU may be blocked.
__device__ __forceinline__ bool IsAborted(const uint64_t* abort) {
  if (abort == nullptr) return false;
  uint64_t value;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(abort) : "memory");
  return value != 0;
}

constexpr uint32_t kPollsPerLookAtAbort = 64;

// Waits until the slot has the epoch. Returns false if the launch is aborted instead. It looks at
// the abort word only once in 64 failed acquires, because each look crosses the bus to the host.
__device__ __forceinline__ bool WaitForSlot(const uint64_t* slot, uint64_t epoch,
                                            const uint64_t* abort) {
  for (uint32_t failed = 1; LoadAcquire(slot) < epoch; ++failed) {
    if (failed % kPollsPerLookAtAbort == 0 && IsAborted(abort)) return false;
  }
  return true;
}

// Orders what the thread knows of global memory before its later bulk copies.
__device__ __forceinline__ void FenceAsyncGlobal() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

// Adds this CTA's part. Returns true for the last one, which then knows of all others.
__device__ __forceinline__ bool CountContribution(uint32_t* counter, int contributors) {
  uint32_t before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(before)
               : "l"(counter)
               : "memory");
  if (before + 1 != static_cast<uint32_t>(contributors)) return false;
  // For the next launch, which begins after this one has ended.
  asm volatile("st.relaxed.gpu.global.u32 [%0], 0;" ::"l"(counter) : "memory");
  return true;
}

__device__ __forceinline__ void RaiseSlot(uint64_t* slot, uint64_t epoch) {
  asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(slot), "l"(epoch) : "memory");
}

}  // namespace agmm::sm90
