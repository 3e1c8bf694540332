// cuda_probe: measurements, on a GPU only. Numbers, and no opinion of them.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "tests/gpu/probe.h"

namespace {

using Clock = std::chrono::steady_clock;

double Microseconds(Clock::time_point since) {
  return std::chrono::duration<double, std::micro>(Clock::now() - since).count();
}

std::string Number(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f %s", value < 100 ? 2 : 0, value, unit);
  return text;
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
  void Release() { *static_cast<volatile unsigned long long*>(flag_) = 1; }

 private:
  Probe& probe_;
  unsigned long long* flag_;
};

// Whether the stream's work ends within `limit_ms`.
bool EndsWithin(Probe& probe, CUstream stream, int limit_ms) {
  const auto begin = Clock::now();
  while (Microseconds(begin) < limit_ms * 1000.0) {
    if (probe.cu.cuStreamQuery(stream) == CUDA_SUCCESS) return true;
  }
  return false;
}

void StalledStreams(Probe& probe) {
  const CUdeviceptr memory = probe.Device(1);
  std::vector<CUstream> spinning;
  for (int i = 0; i < 128; ++i) spinning.push_back(probe.Stream());
  const CUstream other = probe.Stream();
  for (int count = 1; count <= 128; ++count) {
    Spin spin(probe);
    for (int i = 0; i < count; ++i) spin.Launch(spinning[i], 1000);
    probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(memory, 1, 1, other));
    const bool ends = EndsWithin(probe, other, 50);
    spin.Release();
    for (CUstream stream : spinning) probe.cu.cuStreamSynchronize(stream);
    probe.cu.cuStreamSynchronize(other);
    if (!ends) {
      probe.text = std::to_string(count) + " spinning streams stall another one";
      return;
    }
  }
  probe.text = "128 spinning streams stall no other";
}

void QueueDepth(Probe& probe) {
  const CUdeviceptr memory = probe.Device(1);
  const CUstream stream = probe.Stream();
  Spin spin(probe);
  spin.Launch(stream, 1000);
  for (int depth = 1; depth <= 100000; ++depth) {
    const auto begin = Clock::now();
    probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(memory, 1, 1, stream));
    if (Microseconds(begin) > 100000) {
      probe.text = "call " + std::to_string(depth) + " behind a spinning kernel blocked";
      return;
    }
  }
  probe.text = "100000 calls did not block";
}

// Which calls do not return while a kernel spins for half a second.
void BlockingCalls(Probe& probe) {
  const CUstream stream = probe.Stream();
  CUdeviceptr memory = 0, mapped = 0;
  void* pinned = nullptr;
  CUstream made = nullptr;
  CUevent event = nullptr;
  const auto time = [&](const char* name, auto call) {
    Spin spin(probe);
    spin.Launch(stream, 500);
    const auto begin = Clock::now();
    call();
    const double us = Microseconds(begin);
    probe.text += std::string(probe.text.empty() ? "" : ", ") + name +
                  (us > 400000 ? " BLOCKS" : " " + Number(us, "us"));
    spin.Release();
    probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(stream));
  };
  time("cuMemAlloc", [&] { probe.cu.cuMemAlloc(&memory, Probe::kMiB); });
  time("cuMemFree", [&] { probe.cu.cuMemFree(memory); });
  time("cuMemHostAlloc",
       [&] { probe.cu.cuMemHostAlloc(&pinned, Probe::kMiB, CU_MEMHOSTALLOC_PORTABLE); });
  time("cuMemFreeHost", [&] { probe.cu.cuMemFreeHost(pinned); });
  time("create, map, access", [&] { mapped = probe.Map(2 * Probe::kMiB, 0, {0}); });
  time("cuMemUnmap", [&] { probe.cu.cuMemUnmap(mapped, 2 * Probe::kMiB); });
  probe.cu.cuMemAddressFree(mapped, 2 * Probe::kMiB);
  probe.mapped.clear();
  time("cuStreamCreateWithPriority",
       [&] { probe.cu.cuStreamCreateWithPriority(&made, CU_STREAM_NON_BLOCKING, 0); });
  time("cuStreamDestroy", [&] { probe.cu.cuStreamDestroy(made); });
  time("cuEventCreate", [&] { probe.cu.cuEventCreate(&event, CU_EVENT_DEFAULT); });
  time("cuEventDestroy", [&] { probe.cu.cuEventDestroy(event); });
  probe.cu.cuLibraryUnload(probe.library);
  probe.library = nullptr;
  probe.Kernel("probe_spin");
  const CUlibrary before = probe.library;
  time("cuLibraryLoadData", [&] {
    probe.library = nullptr;
    probe.Kernel("probe_store");
  });
  probe.cu.cuLibraryUnload(before);
}

void Signal(Probe& probe) {
  const CUstream waiting = probe.Stream(), signalling = probe.Stream();
  const CUdeviceptr flag = probe.Device(8), source = probe.Device(8);
  auto* one = probe.Host<unsigned long long>(1);
  *one = 1;
  probe.Kernel("probe_spin");
  double best = 1e9;
  for (int round = 0; round < 20; ++round) {
    probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(flag, 0, 8, waiting));
    probe.Check("cuMemcpyHtoDAsync", probe.cu.cuMemcpyHtoDAsync(source, one, 8, signalling));
    probe.cu.cuStreamSynchronize(waiting);
    probe.cu.cuStreamSynchronize(signalling);
    CUdeviceptr at = flag;
    unsigned long long value = 1, limit_ns = 1000000000;
    void* arguments[] = {&at, &value, &limit_ns};
    probe.Launch("probe_spin", 1, 1, waiting, arguments);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const auto begin = Clock::now();
    probe.Check("cuMemcpyDtoDAsync", probe.cu.cuMemcpyDtoDAsync(flag, source, 8, signalling));
    probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(waiting));
    best = std::min(best, Microseconds(begin));
  }
  probe.text = "a kernel that spins on device memory sees an 8-byte copy after " +
               (best > 900000 ? "never" : Number(best, "us"));
}

void BesideAFullGrid(Probe& probe) {
  int sms = 0;
  probe.cu.cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
  const size_t bytes = Probe::kMiB;
  const CUdeviceptr a = probe.Device(bytes), b = probe.Device(bytes);
  char* host = probe.Host(bytes);
  const CUstream grid = probe.Stream(), copies = probe.Stream();
  CUDA_MEMCPY2D rows = {};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = a;
  rows.dstDevice = b;
  rows.srcPitch = rows.dstPitch = 1024;
  rows.WidthInBytes = 1000;
  rows.Height = 1000;
  const auto time = [&](const char* name, auto copy) {
    Spin spin(probe);
    spin.Launch(grid, 500, 2 * sms, 1024);  // 2048 threads an SM: no room for another block
    copy();
    const bool ends = EndsWithin(probe, copies, 200);
    probe.text += std::string(probe.text.empty() ? "" : ", ") + name + (ends ? " runs" : " WAITS");
    spin.Release();
    probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(grid));
    probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(copies));
  };
  time("host to device", [&] { probe.cu.cuMemcpyHtoDAsync(a, host, bytes, copies); });
  time("device to host", [&] { probe.cu.cuMemcpyDtoHAsync(host, a, bytes, copies); });
  time("device to device", [&] { probe.cu.cuMemcpyDtoDAsync(b, a, bytes, copies); });
  time("2D", [&] { probe.cu.cuMemcpy2DAsync(&rows, copies); });
  time("memset", [&] { probe.cu.cuMemsetD8Async(a, 0, bytes, copies); });
}

void CallCosts(Probe& probe) {
  const CUstream stream = probe.Stream(), other = probe.Stream();
  const CUevent event = probe.Event(0, CU_EVENT_DISABLE_TIMING), timed = probe.Event();
  const CUdeviceptr a = probe.Device(64), b = probe.Device(64);
  const CUfunction store = probe.Kernel("probe_store");
  CUdeviceptr at = a;
  unsigned long long value = 1;
  void* arguments[] = {&at, &value};
  const auto time = [&](const char* name, auto call) {
    constexpr int kCalls = 500;
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      const auto begin = Clock::now();
      for (int i = 0; i < kCalls; ++i) call();
      best = std::min(best, Microseconds(begin) / kCalls);
      probe.cu.cuStreamSynchronize(stream);
    }
    probe.text += std::string(probe.text.empty() ? "" : ", ") + name + " " + Number(best, "us");
  };
  time("record", [&] { probe.cu.cuEventRecord(event, stream); });
  time("timed record", [&] { probe.cu.cuEventRecord(timed, stream); });
  probe.cu.cuEventRecord(event, other);
  time("wait", [&] { probe.cu.cuStreamWaitEvent(stream, event, 0); });
  time("query", [&] { probe.cu.cuEventQuery(event); });
  time("copy", [&] { probe.cu.cuMemcpyDtoDAsync(b, a, 64, stream); });
  time("launch",
       [&] { probe.cu.cuLaunchKernel(store, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr); });
}

void CopyRates(Probe& probe) {
  const size_t bytes = 256 * Probe::kMiB;
  const CUdeviceptr memory = probe.Device(bytes);
  char* host = probe.Host(bytes);
  const CUstream stream = probe.Stream();
  const auto time = [&](const char* name, auto copy) {
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      const auto begin = Clock::now();
      copy();
      probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(stream));
      best = std::min(best, Microseconds(begin));
    }
    probe.text += std::string(probe.text.empty() ? "" : ", ") + name + " " +
                  Number(bytes / best / 1000, "GB/s");
  };
  time("host to device", [&] { probe.cu.cuMemcpyHtoDAsync(memory, host, bytes, stream); });
  time("device to host", [&] { probe.cu.cuMemcpyDtoHAsync(host, memory, bytes, stream); });
}

// From one GPU's copy to another GPU's copy behind it, there and back.
void EventLatency(Probe& probe) {
  if (!probe.two_gpus()) return probe.Skip("one GPU");
  const CUstream streams[2] = {probe.Stream(0), probe.Stream(1)};
  const CUevent events[2] = {probe.Event(0, CU_EVENT_DISABLE_TIMING),
                             probe.Event(1, CU_EVENT_DISABLE_TIMING)};
  constexpr int kRounds = 200;
  const auto begin = Clock::now();
  for (int round = 0; round < kRounds; ++round) {
    for (int gpu : {0, 1}) {
      probe.On(gpu, [&] {
        probe.cu.cuStreamWaitEvent(streams[gpu], events[1 - gpu], 0);
        probe.cu.cuEventRecord(events[gpu], streams[gpu]);
      });
    }
  }
  probe.On(1,
           [&] { probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(streams[1])); });
  probe.text = Number(Microseconds(begin) / (2 * kRounds), "us") + " an edge";
}

}  // namespace

std::vector<ProbeCheck> Measurements() {
  constexpr auto kFact = ProbeCheck::kFact;
  return {
      {kFact, "fact.stalled_streams", "spinning streams before another one stalls", StalledStreams},
      {kFact, "fact.queue_depth", "calls before one blocks", QueueDepth},
      {kFact, "fact.blocking_calls", "calls beside a spinning kernel", BlockingCalls},
      {kFact, "fact.signal", "an 8-byte copy as a signal", Signal},
      {kFact, "fact.full_grid", "copies beside a grid that fills the GPU", BesideAFullGrid},
      {kFact, "fact.call_costs", "host time of a call", CallCosts},
      {kFact, "fact.copy_rates", "256 MiB", CopyRates},
      {kFact, "fact.event_latency", "an event between two GPUs, submitted and waited for",
       EventLatency},
  };
}
