// Kernels of cuda_probe.

// Spins until *flag is at least `value`, at most `limit_ns`.
extern "C" __global__ void probe_spin(const volatile unsigned long long* flag,
                                      unsigned long long value, unsigned long long limit_ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*flag < value && now - begin < limit_ns);
}

extern "C" __global__ void probe_store(unsigned long long* at, unsigned long long value) {
  *at = value;
}
