#include "kernels/cpu/cpu_device.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/cpu/cpu_heap.h"

namespace agmm {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads)
      : threads_(threads),
        monitor_(std::make_shared<Monitor>()),
        library_(threads),
        launches_(monitor_, threads) {}

  absl::StatusOr<std::unique_ptr<Heap>> CreateHeap(int64_t size_bytes) override {
    return CpuHeap::Create(size_bytes);
  }
  std::unique_ptr<Executor> CreateExecutor() override {
    return std::make_unique<CpuExecutor>(
        CpuQueue{monitor_, &launches_, &library_, &packs_, threads_});
  }
  void ForgetContents(Heap* heap, int64_t offset, int64_t bytes) override {
    std::lock_guard lock(monitor_->mutex);
    const std::byte* begin = heap->host().data() + offset;
    packs_.Forget(begin, begin + bytes);
  }
  void Lend(ProgressEngine* progress) override { launches_.Lend(progress); }
  DeviceInfo info() const override {
    return {
        "cpu",
        absl::StrFormat("%d thread%s, %s", threads_, threads_ == 1 ? "" : "s", GemmDescription()),
        threads_};
  }
  DeviceCounters counters() const override {
    std::lock_guard lock(monitor_->mutex);
    DeviceCounters counters = monitor_->counters;
    counters.packed_bytes = packs_.bytes();
    return counters;
  }

 private:
  const int threads_;
  const std::shared_ptr<Monitor> monitor_;
  GemmLibrary library_;
  PackCache packs_;
  LaunchQueue launches_;  // last: its workers use all of the above
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(int threads) {
  return std::make_unique<CpuDevice>(std::max(threads, 1));
}

}  // namespace agmm
