// The device cut: memory, and queues that work on it.
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
};

// What one device has done since it was made, for `status`, metrics and tests.
struct DeviceCounters {
  int64_t packs = 0;          // operands packed for the GEMM
  int64_t packed_bytes = 0;   // held now
  int64_t scratch_bytes = 0;  // held now
  int64_t allocations = 0;    // pieces of memory taken for packed operands and scratch
  int64_t epochs = 0;         // finished, well or not
};

class Device {
 public:
  virtual ~Device() = default;
  // Errors: RESOURCE_EXHAUSTED when the machine has not that much.
  virtual absl::StatusOr<std::unique_ptr<Heap>> CreateHeap(int64_t size_bytes) = 0;
  // An executor for one plan. Must not outlive the device.
  virtual std::unique_ptr<Executor> CreateExecutor() = 0;
  // The contents of [offset, offset + bytes) of `heap` are gone: what was made from them (packed
  // operands) goes too.
  virtual void ForgetContents(Heap* heap, int64_t offset, int64_t bytes) = 0;
  // From now on a thread of the device that waits drives `progress`. Null: none does any more when
  // this returns.
  virtual void Lend(ProgressEngine* progress) = 0;
  virtual DeviceInfo info() const = 0;
  virtual DeviceCounters counters() const = 0;
};

}  // namespace agmm
