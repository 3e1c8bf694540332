// The device that an entry of the configuration describes.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "daemon/config/config.h"
#include "kernels/device/device.h"

namespace agmm {

// Must be called before any thread starts, because it sets environment variables that drivers read.
void SetUpDrivers();

// Errors: those of the device's kind, FAILED_PRECONDITION if this build does not have it; they
// begin with "device cuda, gpu 1".
absl::StatusOr<std::unique_ptr<Device>> CreateDevice(const DeviceConfig& config);

}  // namespace agmm
