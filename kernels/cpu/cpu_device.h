// The CPU device: memory in a memfd, a fixed number of worker threads, oneDNN for the arithmetic.
#pragma once

#include <memory>

#include "kernels/device/device.h"

namespace agmm {

// A device of `threads` >= 1 workers, which all its executors share.
std::unique_ptr<Device> CreateCpuDevice(int threads);

}  // namespace agmm
