// cuda_probe: how kernels and streams that wait on memory see the writes of others. The CUDA device
// does not use this yet.
#include <algorithm>
#include <thread>

#include "tests/gpu/measure.h"

namespace {

using Word = unsigned long long;

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

// Waits of a stream for a value in memory of its own GPU, mapped like a heap.
void MemoryOperations(Probe& probe) {
  auto* const write = probe.Find<decltype(cuStreamWriteValue64)>("cuStreamWriteValue64");
  auto* const wait = probe.Find<decltype(cuStreamWaitValue64)>("cuStreamWaitValue64");
  if (!write || !wait || !probe.Attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) {
    return probe.Skip("the GPU has no 64-bit memory operations");
  }
  const size_t bytes = 4 * Probe::kMiB;
  const CUdeviceptr flag = probe.Map(2 * Probe::kMiB, 0, {0}), source = probe.Device(8);
  const CUdeviceptr data = probe.Device(bytes);
  const CUstream waiting = probe.Stream(), signalling = probe.Stream();
  char* const last = probe.Host(1);
  probe.Kernel("probe_store");
  probe.Check("cuStreamWriteValue64", write(signalling, source, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
  const auto synchronize = [&] {
    probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(signalling));
    probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(waiting));
  };
  const auto begin_wait = [&] {
    probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(flag, 0, 8, waiting));
    synchronize();
    probe.Check("cuStreamWaitValue64", wait(waiting, flag, 1, CU_STREAM_WAIT_VALUE_GEQ));
  };
  const auto time = [&](const std::string& name, auto signal) {
    double best = 1e9;
    for (int round = 0; round < 20 && probe.failure.empty(); ++round) {
      begin_wait();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto begin = Clock::now();
      probe.Check(name, signal());
      if (!EndsWithin(probe, waiting, 500)) {
        probe.Check("cuStreamWriteValue64", write(signalling, flag, 1, 0));
        synchronize();
        return Append(probe.text, name + " is not seen");
      }
      best = std::min(best, Microseconds(begin));
    }
    Append(probe.text, name + " is seen after " + Number(best, "us"));
  };
  time("a write", [&] { return write(signalling, flag, 1, CU_STREAM_WRITE_VALUE_DEFAULT); });
  time("an 8-byte copy", [&] { return probe.cu.cuMemcpyDtoDAsync(flag, source, 8, signalling); });
  time("a kernel's store", [&] {
    CUdeviceptr at = flag;
    Word value = 1;
    void* arguments[] = {&at, &value};
    probe.Launch("probe_store", 1, 1, signalling, arguments);
    return CUDA_SUCCESS;
  });
  constexpr int kRounds = 50;
  int stale = 0;
  for (int round = 1; round <= kRounds && probe.failure.empty(); ++round) {
    begin_wait();
    probe.Check("cuMemcpyDtoHAsync",
                probe.cu.cuMemcpyDtoHAsync(last, data + bytes - 1, 1, waiting));
    probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(data, static_cast<unsigned char>(round),
                                                            bytes, signalling));
    probe.Check("cuStreamWriteValue64", write(signalling, flag, 1, CU_STREAM_WRITE_VALUE_DEFAULT));
    synchronize();
    stale += *last != round;
  }
  Append(probe.text,
         "stale behind a write " + std::to_string(stale) + " of " + std::to_string(kRounds));
}

// Bulk loads by an SM of data that a copy has written, on another GPU if there is one with access.
void BulkLoad(Probe& probe) {
  if (probe.Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) < 9) {
    return probe.Skip("the GPU has no bulk copies; sm_90 has");
  }
  int peers = 0;
  if (probe.two_gpus()) probe.cu.cuDeviceCanAccessPeer(&peers, 0, 1);
  const int copier = peers ? 1 : 0;
  const std::vector<int> users = peers ? std::vector<int>{0, 1} : std::vector<int>{0};
  constexpr size_t kBytes = 16 << 10;  // as probe_bulk_load loads
  const CUdeviceptr data = probe.Map(2 * Probe::kMiB, 0, users), flag = data + Probe::kMiB;
  const CUdeviceptr raised = probe.Device(8), stale = probe.Device(4);
  const CUdeviceptr source = probe.Device(kBytes, copier), one = probe.Device(8, copier);
  const CUstream loads = probe.Stream(), copies = probe.Stream(copier);
  const CUevent copied = probe.Event(copier, CU_EVENT_DISABLE_TIMING);
  unsigned* const count = probe.Host<unsigned>(1);
  Word* const value_of_one = probe.Host<Word>(1);
  *value_of_one = 1;
  probe.Check("cuMemcpyHtoDAsync", probe.cu.cuMemcpyHtoDAsync(raised, value_of_one, 8, loads));
  probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(loads));
  probe.On(copier, [&] {
    probe.Check("cuMemcpyHtoDAsync", probe.cu.cuMemcpyHtoDAsync(one, value_of_one, 8, copies));
    probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(copies));
  });
  probe.Kernel("probe_bulk_load");
  const auto copy = [&](int round) {
    probe.On(copier, [&] {
      probe.Check(
          "cuMemsetD8Async",
          probe.cu.cuMemsetD8Async(source, static_cast<unsigned char>(round), kBytes, copies));
      probe.Check("cuMemcpyDtoDAsync", probe.cu.cuMemcpyDtoDAsync(data, source, kBytes, copies));
      probe.Check("cuEventRecord", probe.cu.cuEventRecord(copied, copies));
      probe.Check("cuMemcpyDtoDAsync", probe.cu.cuMemcpyDtoDAsync(flag, one, 8, copies));
    });
  };
  constexpr Word kLimitNs = 1000000000;
  const auto load = [&](int round, CUdeviceptr at, int fence) {
    CUdeviceptr from = data, to = stale;
    Word value = 1, limit_ns = kLimitNs;
    unsigned wanted = 0x01010101u * static_cast<unsigned char>(round);
    void* arguments[] = {&at, &value, &limit_ns, &from, &wanted, &fence, &to};
    probe.Launch("probe_bulk_load", 1, 128, loads, arguments);
  };
  constexpr int kRounds = 50;
  int total = 0;
  const auto run = [&](const std::string& name, bool spins, int fence) {
    int loads_that_were_stale = 0;
    std::string end;
    for (int round = 1; round <= kRounds && end.empty() && probe.failure.empty(); ++round) {
      ++total;
      probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(flag, 0, 8, loads));
      probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(stale, 0, 4, loads));
      probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(loads));
      const auto begin = Clock::now();
      if (spins) {
        load(total, flag, fence);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      copy(total);
      if (!spins) {
        probe.Check("cuStreamWaitEvent", probe.cu.cuStreamWaitEvent(loads, copied, 0));
        load(total, raised, fence);
      }
      probe.Check("cuMemcpyDtoHAsync", probe.cu.cuMemcpyDtoHAsync(count, stale, 4, loads));
      probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(loads));
      probe.On(copier,
               [&] { probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(copies)); });
      // Nine tenths, because the clocks of the GPU and of the CPU differ.
      if (Microseconds(begin) > kLimitNs / 1000 * 0.9) {
        end = " until round " + std::to_string(round) + " ran into its limit";
      } else {
        loads_that_were_stale += *count != 0;
      }
    }
    Append(probe.text, name + " " + std::to_string(loads_that_were_stale) + end);
  };
  probe.text = "copies by GPU " + std::to_string(copier) + ", stale of " + std::to_string(kRounds);
  run("behind an event", false, 0);
  if (*count == ~0u) return probe.Skip("no machine code for this GPU has bulk copies");
  run("behind a signal and a proxy fence", true, 1);
  run("behind a signal alone", true, 0);
}

}  // namespace

std::vector<ProbeCheck> SignalChecks() {
  constexpr auto kFact = ProbeCheck::kFact;
  return {
      {kFact, "fact.signal", "an 8-byte copy as a signal", Signal},
      {kFact, "fact.memory_operations", "a stream waits for a value in its own memory",
       MemoryOperations},
      {kFact, "fact.bulk_load", "cp.async.bulk of what a copy wrote", BulkLoad},
  };
}
