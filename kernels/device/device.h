// A device: memory, and executors that work on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device/executor.h"
#include "kernels/device/heap.h"
#include "kernels/device/progress_engine.h"

namespace agmm {

struct DeviceInfo {
  std::string kind;         // "cpu"
  std::string description;  // "2 threads, oneDNN 2.6.3, avx512_bf16"
  int threads = 0;
  // Devices of a node load and store each other's memory if they are in the same island.
  int island = 0;
  // The reason why the device cannot be used for the rest of the process's life; empty if it can.
  // All other fields are constant.
  std::string failure = {};
};

// Counters of one device since its creation, for `status`, metrics and tests.
struct DeviceCounters {
  int64_t packs = 0;          // operands packed for the GEMM
  int64_t packed_bytes = 0;   // held now
  int64_t scratch_bytes = 0;  // held now
  int64_t allocations = 0;    // for packed operands and scratch
  int64_t epochs = 0;         // finished or failed
};

class Device {
 public:
  virtual ~Device() = default;
  // Errors: RESOURCE_EXHAUSTED when the machine has less memory.
  virtual absl::StatusOr<std::unique_ptr<Heap>> CreateHeap(int64_t size_bytes) = 0;
  // An executor for one plan. Must not outlive the device.
  virtual std::unique_ptr<Executor> CreateExecutor() = 0;
  // Drops copies (packed operands) of the bytes [offset, offset + bytes) of `heap`, because these
  // bytes no longer hold a tensor.
  virtual void ForgetContents(Heap* heap, int64_t offset, int64_t bytes) = 0;
  // Lets a waiting thread of the device drive `progress` from now on. With null, no thread of the
  // device drives it after this returns. A device whose threads do not wait for messages does
  // nothing.
  virtual void Lend(ProgressEngine* progress) = 0;
  virtual DeviceInfo info() const = 0;
  virtual DeviceCounters counters() const = 0;
};

}  // namespace agmm
