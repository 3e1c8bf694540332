#include "kernels/cpu/cpu_device.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/cpu/cpu_heap.h"

namespace agmm {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int threads) : parts_(threads) {}

  const absl::Status& status() const { return parts_.workers.status(); }

  absl::StatusOr<std::unique_ptr<Heap>> CreateHeap(int64_t size_bytes) override {
    return CpuHeap::Create(size_bytes);
  }
  std::unique_ptr<Executor> CreateExecutor() override {
    return std::make_unique<CpuExecutor>(&parts_);
  }
  void ForgetContents(Heap* heap, int64_t offset, int64_t bytes) override {
    std::lock_guard lock(parts_.monitor->mutex);
    const std::byte* begin = heap->host().data() + offset;
    parts_.packs.Forget(begin, begin + bytes);
  }
  void Lend(ProgressEngine* progress) override { parts_.workers.Lend(progress); }
  DeviceInfo info() const override {
    return {"cpu", absl::StrFormat("%s, %s", Counted(parts_.threads, "thread"), GemmDescription()),
            parts_.threads};
  }
  DeviceCounters counters() const override {
    std::lock_guard lock(parts_.monitor->mutex);
    DeviceCounters counters = parts_.monitor->counters;
    counters.packed_bytes = parts_.packs.bytes();
    return counters;
  }

 private:
  CpuParts parts_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(int threads) {
  auto device = std::make_unique<CpuDevice>(std::max(threads, 1));
  AGMM_RETURN_IF_ERROR(device->status());
  return device;
}

}  // namespace agmm
