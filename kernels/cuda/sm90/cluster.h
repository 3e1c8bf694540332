// Clusters: barriers and words in the shared memory of other CTAs, and loads into all of them. An
// address in another CTA comes from AddressInCta.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace agmm::sm90 {

// Returns the address at which the cluster sees this place of the CTA with that rank.
__device__ __forceinline__ uint32_t AddressInCta(uint32_t address, int rank) {
  uint32_t found;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(address), "r"(rank));
  return found;
}

// Waits for all threads of the cluster, and knows what they have done.
__device__ __forceinline__ void SyncCluster() {
  __syncwarp();
  asm volatile(
      "barrier.cluster.arrive.release.aligned;\n"
      "barrier.cluster.wait.acquire.aligned;" ::
          : "memory");
}

// Arrives at an mbarrier of any CTA of the cluster, without a word about memory: by default, the
// release has the scope of the CTA. It passes on that wgmma has read a stage, which the wait for
// the products has seen, so bulk copies that are issued later come later. A release to the cluster
// would make ptxas add a MEMBAR of the GPU, in each warp for each stage.
__device__ __forceinline__ void ArriveInCluster(uint32_t mbarrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(mbarrier) : "memory");
}

// Loads the box to the same place in each CTA of the cluster. The mbarrier at the same place of
// each gets its bytes.
template <int kCtas>
__device__ __forceinline__ void LoadTileIntoCluster(uint32_t to, const CUtensorMap* map, int x,
                                                    int y, uint32_t mbarrier) {
  constexpr uint16_t kAll = (1 << kCtas) - 1;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes."
      "multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(mbarrier), "h"(kAll)
      : "memory");
}

// A grant: the number of pieces that the leader has seen arrive. Its top bit says that the leader
// gives up instead of the next one.
constexpr uint32_t kGivenUp = 1u << 31;

__device__ __forceinline__ void InitGrant(uint32_t grant) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(grant), "r"(0) : "memory");
}

// Passes on what the leader knows of these pieces. `grant` lies in another CTA.
__device__ __forceinline__ void GrantPieces(uint32_t grant, int pieces, bool given_up) {
  const uint32_t value = static_cast<uint32_t>(pieces) | (given_up ? kGivenUp : 0);
  asm volatile("st.release.cluster.shared::cluster.u32 [%0], %1;" ::"r"(grant), "r"(value)
               : "memory");
}

// Waits until the piece is granted. Returns false if the leader gives up instead.
__device__ __forceinline__ bool WaitForGrant(uint32_t grant, int piece) {
  uint32_t value;
  do {
    asm volatile("ld.acquire.cluster.shared::cta.u32 %0, [%1];"
                 : "=r"(value)
                 : "r"(grant)
                 : "memory");
    if ((value & ~kGivenUp) > static_cast<uint32_t>(piece)) return true;
  } while ((value & kGivenUp) == 0);
  return false;
}

}  // namespace agmm::sm90
