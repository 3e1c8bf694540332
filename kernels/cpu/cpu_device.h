// The CPU device: memory in a memfd, a fixed number of worker threads, oneDNN for the arithmetic.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/device/device.h"

namespace agmm {

// Creates a device with `threads` >= 1 workers, which all its executors share. Errors:
// RESOURCE_EXHAUSTED if a worker cannot be started.
absl::StatusOr<std::unique_ptr<Device>> CreateCpuDevice(int threads);

}  // namespace agmm
