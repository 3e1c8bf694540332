// Tiles of matrices between global and shared memory (TMA). Coordinates count elements: x along a
// row, y along a column.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace agmm::sm90 {

// Loads the box of the map at (x, y); the mbarrier gets its bytes. Elements outside of the matrix
// become zero.
__device__ __forceinline__ void LoadTile(uint32_t to, const CUtensorMap* map, int x, int y,
                                         uint32_t mbarrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
      "%3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(mbarrier)
      : "memory");
}

// Stores the box, as a bulk group of this thread. Elements outside of the matrix are left out.
__device__ __forceinline__ void StoreTile(const CUtensorMap* map, int x, int y, uint32_t from) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];\n"
      "cp.async.bulk.commit_group;" ::"l"(map),
      "r"(x), "r"(y), "r"(from)
      : "memory");
}

// Waits until this thread's stores have read their shared memory. They may not have arrived yet.
__device__ __forceinline__ void WaitForStoreReads() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// Waits until this thread's stores have arrived.
__device__ __forceinline__ void WaitForStores() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

}  // namespace agmm::sm90
