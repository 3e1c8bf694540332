// A rank on a GPU of NVIDIA.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"

namespace agmm {

struct CudaDeviceOptions {
  int gpu = 0;  // its number among the GPUs that this process sees
  // Other processes may use the GPU at the same time: for tests of correctness, because they slow
  // each other down.
  bool shared = false;
  // Hears why the GPU cannot be used any more, once, on any thread. Of several devices on one GPU,
  // that of the first one is called.
  std::function<void(const std::string& why)> on_failure = nullptr;
};

// Sets what the driver reads from the environment, where the user has not. Before any thread is
// made, because another one may read the environment meanwhile.
void SetUpCudaEnvironment();

// Errors: FAILED_PRECONDITION with the reason why the driver or cuBLASLt is missing, or for a GPU
// that another daemon holds; INVALID_ARGUMENT for a GPU that does not exist.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceOptions& options);

}  // namespace agmm
