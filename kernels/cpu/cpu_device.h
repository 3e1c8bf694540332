// The CPU device: memory in a memfd, a fixed number of worker threads, oneDNN for the arithmetic.
#pragma once

#include <memory>

#include "kernels/device/device.h"

namespace agmm {

// `threads` >= 1 workers, made now and shared by all executors of the device.
std::unique_ptr<Device> CreateCpuDevice(int threads);

}  // namespace agmm
