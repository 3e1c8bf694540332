// A device of the host whose heaps hide their memory, to prove that only the device accesses it.
#pragma once

#include <memory>
#include <utility>

#include "kernels/device/device.h"
#include "tests/support/hidden_heap.h"

namespace agmm::test {

class HiddenDevice final : public Device {
 public:
  explicit HiddenDevice(std::unique_ptr<Device> device) : device_(std::move(device)) {}

  absl::StatusOr<std::unique_ptr<Heap>> CreateHeap(int64_t size_bytes) override;
  std::unique_ptr<Executor> CreateExecutor() override;
  void ForgetContents(Heap* heap, int64_t offset, int64_t bytes) override;
  void Lend(ProgressEngine* progress) override { device_->Lend(progress); }
  DeviceInfo info() const override { return device_->info(); }
  DeviceCounters counters() const override { return device_->counters(); }

 private:
  const std::unique_ptr<Device> device_;
};

}  // namespace agmm::test
