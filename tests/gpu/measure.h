// Tools for measurements: clocks, numbers as text, and kernels that spin.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>

#include "tests/gpu/probe.h"

using Clock = std::chrono::steady_clock;

inline double Microseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
}

inline std::string Number(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f %s", value < 100 ? 2 : 0, value, unit);
  return text;
}

// Adds to a list that is separated by commas.
inline void Append(std::string& list, const std::string& item) {
  list += (list.empty() ? "" : ", ") + item;
}

// Kernels that spin until they are released or `limit_ms` are over.
class Spin {
 public:
  explicit Spin(Probe& probe) : probe_(probe), flag_(probe.Host<unsigned long long>(1)) {
    *flag_ = 0;
    probe.Kernel("probe_spin");  // loaded before anything spins
  }
  ~Spin() { Release(); }

  void Launch(CUstream stream, int limit_ms, int blocks = 1, int threads = 1) {
    auto flag = reinterpret_cast<CUdeviceptr>(flag_);
    unsigned long long value = 1, limit_ns = limit_ms * 1000000ull;
    void* arguments[] = {&flag, &value, &limit_ns};
    probe_.Launch("probe_spin", blocks, threads, stream, arguments);
  }
  // Starts as many threads as the SMs have room for, and returns when all of them run; one thread
  // of each block spins and the others wait for it.
  void FillGpu(CUstream stream, int limit_ms) {
    constexpr int kThreads = 512;
    const int sms = probe_.Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    const int most = probe_.Attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    Launch(stream, limit_ms, sms * (most / kThreads), kThreads);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  void Release() { *static_cast<volatile unsigned long long*>(flag_) = 1; }

 private:
  Probe& probe_;
  unsigned long long* flag_;
};

// Returns true if the stream's work ends within `limit_ms`.
inline bool EndsWithin(Probe& probe, CUstream stream, int limit_ms) {
  const auto begin = Clock::now();
  while (Microseconds(begin) < limit_ms * 1000.0) {
    if (probe.cu.cuStreamQuery(stream) == CUDA_SUCCESS) return true;
  }
  return false;
}
