// cuda_probe: what kernels and streams that wait for a value in memory see of the writes before it.
// The CUDA device does not use such waits yet.
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
class BulkLoads {
 public:
  explicit BulkLoads(Probe& probe) : probe_(probe) {
    *value_of_one_ = 1;
    probe_.Check("cuMemcpyHtoDAsync",
                 probe_.cu.cuMemcpyHtoDAsync(raised_, value_of_one_, 8, loads_));
    Synchronize(loads_);
    probe_.On(copier_, [&] {
      probe_.Check("cuMemcpyHtoDAsync",
                   probe_.cu.cuMemcpyHtoDAsync(one_, value_of_one_, 8, copies_));
      Synchronize(copies_);
    });
    probe_.Kernel("probe_bulk_load");
    probe_.text =
        "copies by GPU " + std::to_string(copier_) + ", stale of " + std::to_string(kRounds);
  }

  // Adds to the text how many of kRounds loads were stale. If `spins`, the kernel itself waits for
  // the copy's signal; otherwise its stream waits for the copy's event.
  void Run(const std::string& name, bool spins, int fence) {
    int stale = 0;
    std::string end;
    for (int round = 1; round <= kRounds && end.empty() && probe_.failure.empty(); ++round) {
      // Nine tenths, because the clocks of the GPU and of the CPU differ.
      if (Round(spins, fence) > kLimitNs / 1000 * 0.9) {
        end = " until round " + std::to_string(round) + " ran into its limit";
      } else {
        stale += *count_ != 0;
      }
    }
    Append(probe_.text, name + " " + std::to_string(stale) + end);
  }

  // Returns true if the last kernel had no machine code for bulk copies.
  bool Unsupported() const { return *count_ == ~0u; }

 private:
  static constexpr int kRounds = 50;
  static constexpr Word kLimitNs = 1000000000;
  static constexpr size_t kBytes = 16 << 10;  // as probe_bulk_load loads

  // Copies and loads once. Returns the microseconds that this took.
  double Round(bool spins, int fence) {
    ++rounds_;
    probe_.Check("cuMemsetD8Async", probe_.cu.cuMemsetD8Async(flag_, 0, 8, loads_));
    probe_.Check("cuMemsetD8Async", probe_.cu.cuMemsetD8Async(stale_, 0, 4, loads_));
    Synchronize(loads_);
    const auto begin = Clock::now();
    if (spins) {
      Load(flag_, fence);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    Copy();
    if (!spins) {
      probe_.Check("cuStreamWaitEvent", probe_.cu.cuStreamWaitEvent(loads_, copied_, 0));
      Load(raised_, fence);
    }
    probe_.Check("cuMemcpyDtoHAsync", probe_.cu.cuMemcpyDtoHAsync(count_, stale_, 4, loads_));
    Synchronize(loads_);
    probe_.On(copier_, [&] { Synchronize(copies_); });
    return Microseconds(begin);
  }

  void Copy() {
    probe_.On(copier_, [&] {
      probe_.Check(
          "cuMemsetD8Async",
          probe_.cu.cuMemsetD8Async(source_, static_cast<unsigned char>(rounds_), kBytes, copies_));
      probe_.Check("cuMemcpyDtoDAsync",
                   probe_.cu.cuMemcpyDtoDAsync(data_, source_, kBytes, copies_));
      probe_.Check("cuEventRecord", probe_.cu.cuEventRecord(copied_, copies_));
      probe_.Check("cuMemcpyDtoDAsync", probe_.cu.cuMemcpyDtoDAsync(flag_, one_, 8, copies_));
    });
  }

  void Load(CUdeviceptr at, int fence) {
    CUdeviceptr from = data_, to = stale_;
    Word value = 1, limit_ns = kLimitNs;
    unsigned wanted = 0x01010101u * static_cast<unsigned char>(rounds_);
    void* arguments[] = {&at, &value, &limit_ns, &from, &wanted, &fence, &to};
    probe_.Launch("probe_bulk_load", 1, 128, loads_, arguments);
  }

  void Synchronize(CUstream stream) {
    probe_.Check("cuStreamSynchronize", probe_.cu.cuStreamSynchronize(stream));
  }

  bool PeerHasAccess() {
    int access = 0;
    if (probe_.two_gpus()) probe_.cu.cuDeviceCanAccessPeer(&access, 0, 1);
    return access != 0;
  }

  Probe& probe_;
  const int copier_ = PeerHasAccess() ? 1 : 0;
  const CUdeviceptr data_ =
      probe_.Map(2 * Probe::kMiB, 0, copier_ == 1 ? std::vector<int>{0, 1} : std::vector<int>{0});
  const CUdeviceptr flag_ = data_ + Probe::kMiB;
  const CUdeviceptr raised_ = probe_.Device(8), stale_ = probe_.Device(4);
  const CUdeviceptr source_ = probe_.Device(kBytes, copier_), one_ = probe_.Device(8, copier_);
  const CUstream loads_ = probe_.Stream(), copies_ = probe_.Stream(copier_);
  const CUevent copied_ = probe_.Event(copier_, CU_EVENT_DISABLE_TIMING);
  unsigned* const count_ = probe_.Host<unsigned>(1);
  Word* const value_of_one_ = probe_.Host<Word>(1);
  int rounds_ = 0;  // so far, in all runs
};

void BulkLoad(Probe& probe) {
  if (probe.Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) < 9) {
    return probe.Skip("the GPU has no bulk copies; sm_90 has");
  }
  BulkLoads loads(probe);
  loads.Run("behind an event", false, 0);
  if (loads.Unsupported()) return probe.Skip("no machine code for this GPU has bulk copies");
  loads.Run("behind a signal and a proxy fence", true, 1);
  loads.Run("behind a signal alone", true, 0);
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
