// A rank on an NVIDIA GPU.
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
  // cuBLASLt computes all products, also those for which there are kernels.
  bool cublaslt_only = false;
  // Kernels record the times of their tiles, so that steps which one kernel computes have times of
  // their own.
  bool trace_chunks = false;
  // Called once, on any thread, with the reason why the GPU can no longer be used. If several
  // devices share a GPU, the callback of the first one is called.
  std::function<void(const std::string& why)> on_failure = nullptr;
};

// Sets environment variables that the driver reads, unless the user has set them. Must be called
// before any thread starts, because a thread could read the environment at the same time.
void SetUpCudaEnvironment();

// Errors: FAILED_PRECONDITION with the reason why the driver or cuBLASLt is missing, or for a GPU
// that another daemon holds; INVALID_ARGUMENT for a GPU that does not exist.
absl::StatusOr<std::unique_ptr<Device>> CreateCudaDevice(const CudaDeviceOptions& options);

}  // namespace agmm
