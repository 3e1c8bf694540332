#include "kernels/cuda/cuda_device.h"

#include <cstdlib>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/cuda/cuda_executor.h"
#include "kernels/cuda/cuda_heap.h"

namespace agmm {
namespace {

class CudaDevice final : public Device {
 public:
  CudaDevice(std::shared_ptr<Gpu> gpu, const CudaDeviceOptions& options)
      : parts_(std::move(gpu), options.cublaslt_only, options.trace_chunks) {}

  absl::Status Init() {
    AGMM_ASSIGN_OR_RETURN(parts_.queue, CudaQueue::Create(parts_.gpu));
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Heap>> CreateHeap(int64_t size_bytes) override {
    return CudaHeap::Create(parts_.gpu, size_bytes);
  }
  std::unique_ptr<Executor> CreateExecutor() override {
    return std::make_unique<CudaExecutor>(&parts_);
  }
  // A CUDA device packs nothing.
  void ForgetContents(Heap*, int64_t, int64_t) override {}
  // Its thread waits for events, not for messages.
  void Lend(ProgressEngine*) override {}
  DeviceInfo info() const override {
    DeviceInfo info;
    info.kind = "cuda";
    info.description = absl::StrFormat("%s, %s", parts_.gpu->where(), parts_.gpu->description());
    info.threads = 1;
    info.island = parts_.gpu->topology().island(parts_.gpu->number());
    info.failure = parts_.gpu->health().failure();
    return info;
  }
  DeviceCounters counters() const override {
    DeviceCounters counters;
    counters.scratch_bytes = parts_.streams.workspace_bytes() + parts_.staging.bytes();
    counters.epochs = parts_.queue->epochs();
    return counters;
  }

 private:
  CudaParts parts_;
};

}  // namespace

void SetUpCudaEnvironment() {
  // Uses the maximum number of hardware queues, because streams that share a queue wait for each
  // other, and the lanes of a single rank already fill the driver's default of 8.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
}

absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceOptions& options) {
  AGMM_ASSIGN_OR_RETURN(auto gpu, Gpu::Open(options.gpu, options.shared, options.on_failure));
  auto device = std::make_unique<CudaDevice>(std::move(gpu), options);
  AGMM_RETURN_IF_ERROR(device->Init());
  return device;
}

}  // namespace agmm
