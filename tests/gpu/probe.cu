// Kernels of cuda_probe.

// Spins until *flag is at least `value`, at most `limit_ns`. Only thread 0 of each block reads the
// flag, because reads of pinned memory by all threads of a GPU would fill its PCIe link.
extern "C" __global__ void probe_spin(const volatile unsigned long long* flag,
                                      unsigned long long value, unsigned long long limit_ns) {
  if (threadIdx.x == 0) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (*flag < value && now - begin < limit_ns);
  }
  __syncthreads();
}

// Loads 16 KiB of `data` by a bulk copy into shared memory, waits until *flag is at least `value`,
// at most `limit_ns`, loads them again and adds to *stale the number of words that differ from
// `wanted`. `fence` adds a fence between the generic and the async proxy. Without support for bulk
// copies, *stale becomes ~0.
extern "C" __global__ void probe_bulk_load(const unsigned long long* flag, unsigned long long value,
                                           unsigned long long limit_ns, const unsigned* data,
                                           unsigned wanted, int fence, unsigned* stale) {
#if __CUDA_ARCH__ >= 900
  constexpr unsigned kWords = 4096;
  __shared__ alignas(128) unsigned words[kWords];
  __shared__ alignas(8) unsigned long long loaded;
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(words));
  const auto barrier = static_cast<unsigned>(__cvta_generic_to_shared(&loaded));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  for (unsigned pass = 0; pass < 2; ++pass) {
    if (threadIdx.x == 0) {
      unsigned long long begin, now, seen;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
      do {
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      } while (pass == 1 && seen < value && now - begin < limit_ns);
      if (fence) asm volatile("fence.proxy.async;" ::: "memory");
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                   "n"(kWords * 4)
                   : "memory");
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(to),
          "l"(data), "n"(kWords * 4), "r"(barrier)
          : "memory");
    }
    unsigned done = 0;
    while (!done) {
      asm volatile(
          "{ .reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p; }"
          : "=r"(done)
          : "r"(barrier), "r"(pass)
          : "memory");
    }
    __syncthreads();
  }
  for (unsigned i = threadIdx.x; i < kWords; i += blockDim.x) {
    if (words[i] != wanted) atomicAdd(stale, 1u);
  }
#else
  *stale = ~0u;
#endif
}

extern "C" __global__ void probe_trap() { asm volatile("trap;"); }

extern "C" __global__ void probe_store(unsigned long long* at, unsigned long long value) {
  *at = value;
}
