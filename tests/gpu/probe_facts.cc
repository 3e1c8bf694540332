// cuda_probe: measurements, only on a GPU. They are reported, and none of them can fail.
#include <algorithm>

#include "tests/gpu/measure.h"

namespace {

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

// Finds the calls that do not return while a kernel spins for half a second.
void BlockingCalls(Probe& probe) {
  const CUstream stream = probe.Stream();
  CUdeviceptr memory = 0, mapped = 0;
  void* pinned = nullptr;
  CUstream made = nullptr;
  CUevent event = nullptr;
  const auto time = [&](const std::string& name, auto call) {
    Spin spin(probe);
    spin.Launch(stream, 500);
    const auto begin = Clock::now();
    call();
    const double us = Microseconds(begin);
    Append(probe.text, name + (us > 400000 ? " BLOCKS" : " " + Number(us, "us")));
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
  probe.cu.cuLibraryUnload(probe.kernel_library);
  probe.kernel_library = nullptr;
  probe.Kernel("probe_spin");
  const CUlibrary before = probe.kernel_library;
  time("cuLibraryLoadData", [&] {
    probe.kernel_library = nullptr;
    probe.Kernel("probe_store");
  });
  probe.cu.cuLibraryUnload(before);
}

void BesideAFullGrid(Probe& probe) {
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
  const auto time = [&](const std::string& name, auto copy) {
    Spin spin(probe);
    spin.FillGpu(grid, 500);
    copy();
    const bool ends = EndsWithin(probe, copies, 200);
    Append(probe.text, name + (ends ? " runs" : " WAITS"));
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

// Copies on the GPU that request copy engines, and copies that do not, alone and beside a full
// grid.
void PreferOverlap(Probe& probe) {
#if CUDA_VERSION >= 13000
  auto* const batch = probe.Find<decltype(cuMemcpyBatchAsync)>("cuMemcpyBatchAsync");
  if (!batch) return probe.Skip("the driver has no cuMemcpyBatchAsync");
  size_t bytes = 256 * Probe::kMiB, first = 0;
  CUdeviceptr from = probe.Device(bytes), to = probe.Device(bytes);
  const CUstream grid = probe.Stream(), copies = probe.Stream();
  for (unsigned flags : {CU_MEMCPY_FLAG_DEFAULT, CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) {
    CUmemcpyAttributes attributes = {};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    attributes.flags = flags;
    for (bool beside : {false, true}) {
      bool ends = true;
      double best = 1e9;
      // The first copy of a kind may load code.
      for (int round = 0; round < 2 && ends; ++round) {
        Spin spin(probe);
        if (beside) spin.FillGpu(grid, 500);
        const auto begin = Clock::now();
        probe.Check("cuMemcpyBatchAsync",
                    batch(&to, &from, &bytes, 1, &attributes, &first, 1, copies));
        ends = EndsWithin(probe, copies, 200);
        best = std::min(best, Microseconds(begin));
        spin.Release();
        probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(grid));
        probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(copies));
        if (!probe.failure.empty()) return;
      }
      Append(probe.text, std::string(flags ? "preferred" : "default") +
                             (beside ? " beside a full grid " : " alone ") +
                             (ends ? Number(bytes / best / 1000, "GB/s") : "WAITS"));
    }
  }
#else
  probe.Skip("built with a toolkit before CUDA 13");
#endif
}

void CallCosts(Probe& probe) {
  const CUstream stream = probe.Stream(), other = probe.Stream();
  const CUevent event = probe.Event(0, CU_EVENT_DISABLE_TIMING), timed = probe.Event();
  const CUdeviceptr a = probe.Device(64), b = probe.Device(64);
  const CUfunction store = probe.Kernel("probe_store");
  CUdeviceptr at = a;
  unsigned long long value = 1;
  void* arguments[] = {&at, &value};
  const auto time = [&](const std::string& name, auto call) {
    constexpr int kCalls = 500;
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      const auto begin = Clock::now();
      for (int i = 0; i < kCalls; ++i) call();
      best = std::min(best, Microseconds(begin) / kCalls);
      probe.cu.cuStreamSynchronize(stream);
    }
    Append(probe.text, name + " " + Number(best, "us"));
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
  const auto time = [&](const std::string& name, auto copy) {
    double best = 1e9;
    for (int round = 0; round < 5; ++round) {
      const auto begin = Clock::now();
      copy();
      probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(stream));
      best = std::min(best, Microseconds(begin));
    }
    Append(probe.text, name + " " + Number(bytes / best / 1000, "GB/s"));
  };
  time("host to device", [&] { probe.cu.cuMemcpyHtoDAsync(memory, host, bytes, stream); });
  time("device to host", [&] { probe.cu.cuMemcpyDtoHAsync(host, memory, bytes, stream); });
}

// The time from one GPU's copy to another GPU's copy that waits for it, there and back.
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
      {kFact, "fact.full_grid", "copies beside a grid that fills the GPU", BesideAFullGrid},
      {kFact, "fact.prefer_overlap", "256 MiB on the GPU, PREFER_OVERLAP_WITH_COMPUTE",
       PreferOverlap},
      {kFact, "fact.call_costs", "host time of a call", CallCosts},
      {kFact, "fact.copy_rates", "256 MiB", CopyRates},
      {kFact, "fact.event_latency", "an event between two GPUs, submitted and waited for",
       EventLatency},
  };
}
