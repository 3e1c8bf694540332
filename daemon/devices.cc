#include "daemon/devices.h"

#include <spdlog/spdlog.h>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/cpu/cpu_device.h"
#ifdef AGMM_CUDA
#include "kernels/cuda/cuda_device.h"
#endif

namespace agmm {
namespace {

absl::StatusOr<std::unique_ptr<Device>> CreateCuda(const DeviceConfig& config) {
#ifdef AGMM_CUDA
  return CreateCudaDevice({config.gpu, config.shared_gpu, config.cublaslt_only, config.trace_chunks,
                           [](const std::string& why) { spdlog::error("{}", why); }});
#else
  return absl::FailedPreconditionError(
      "this build has no cuda devices; build with the CUDA toolkit (-DAGMM_CUDA=ON), or use kind "
      "\"cpu\"");
#endif
}

}  // namespace

void SetUpDrivers() {
#ifdef AGMM_CUDA
  SetUpCudaEnvironment();
#endif
}

absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const DeviceConfig& config) {
  if (config.kind == "cpu") return CreateCpuDevice(config.threads);
  absl::StatusOr<std::unique_ptr<Device>> device = CreateCuda(config);
  if (device.ok()) return device;
  return Annotate(device.status(), absl::StrFormat("device cuda, gpu %d", config.gpu));
}

}  // namespace agmm
