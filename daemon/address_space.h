// The address space that a daemon needs, for processes with a limit on it (ulimit -v).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/config/config.h"

namespace agmm {

// Returns the address space of a daemon on a machine with `cores`: heaps, stacks of `stack_bytes`,
// libraries and their buffers, and as many arenas of malloc as FitAddressSpace allows.
int64_t AddressSpaceOf(const Config& config, int cores, int64_t stack_bytes);

// Under a limit, keeps malloc from taking 64 MiB of addresses for each thread, and checks that the
// daemon fits. gRPC and UCX end the process if they cannot get memory or a thread, so the check
// must run before they start. Errors: RESOURCE_EXHAUSTED.
absl::Status FitAddressSpace(const Config& config);

}  // namespace agmm
