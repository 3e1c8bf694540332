// Kernels for compute_test, which the model runs as PTX.
#include <cstdint>

namespace {

__device__ uint64_t Acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}

}  // namespace

// Waits for the word, then adds 1 to each of the words and writes the sums.
extern "C" __global__ void test_wait_and_add(const uint64_t* slot, uint64_t awaited,
                                             const uint32_t* from, uint32_t* to, int count) {
  if (threadIdx.x == 0) {
    while (Acquire(slot) < awaited) {
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i] + 1;
}

// Writes the words, then raises the slot.
extern "C" __global__ void test_store_and_raise(uint32_t* to, int count, uint64_t* slot,
                                                uint64_t value) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = 100 + i;
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(slot), "l"(value) : "memory");
  }
}

// Waits for the word, then copies 256 bytes by bulk copies. `fence`: orders the acquire before
// them.
extern "C" __global__ void test_wait_and_copy(const uint64_t* slot, uint64_t awaited,
                                              const void* from, void* to, int fence) {
  __shared__ alignas(128) char data[256];
  __shared__ uint64_t mbarrier;
  if (threadIdx.x != 0) return;
  const uint32_t bar = static_cast<uint32_t>(__cvta_generic_to_shared(&mbarrier));
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(data));
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
  while (Acquire(slot) < awaited) {
  }
  if (fence) asm volatile("fence.proxy.async.global;" ::: "memory");
  asm volatile(
      "{\n.reg .pred over;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 256;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], 256, [%0];\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], 0;\n"
      "@!over bra again;\n"
      "cp.async.bulk.global.shared::cta.bulk_group [%3], [%1], 256;\n"
      "cp.async.bulk.commit_group;\n"
      "cp.async.bulk.wait_group.read 0;\n}" ::"r"(bar),
      "r"(at), "l"(from), "l"(to)
      : "memory");
}

// Writes the words through dynamic shared memory of 64 KiB.
extern "C" __global__ void test_through_shared(uint32_t* to, int count) {
  extern __shared__ uint32_t words[];
  const int far = 15 << 10;
  words[far + threadIdx.x] = threadIdx.x;
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < count) to[threadIdx.x] = words[far + (threadIdx.x ^ 1)];
}

// The elementwise kernels, under names that have no host twin.
#define agmm_convert test_convert
#define agmm_reduce test_reduce
#define agmm_fill test_fill
#include "kernels/cuda/elementwise.cu"
