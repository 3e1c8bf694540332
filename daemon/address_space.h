// The address space that a daemon takes, where the process may have only so much of it (ulimit -v).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "daemon/config/config.h"

namespace agmm {

// Address space of a daemon on a machine of `cores`: heaps, stacks of `stack_bytes`, libraries and
// their buffers, and as many arenas of malloc as FitAddressSpace allows.
int64_t AddressSpaceOf(const Config& config, int cores, int64_t stack_bytes);

// Under a limit, keeps malloc from taking 64 MiB of addresses for each thread, and checks that the
// daemon fits. gRPC and UCX end the process where they get no memory or no thread, so this must be
// known before they start. Errors: RESOURCE_EXHAUSTED.
absl::Status FitAddressSpace(const Config& config);

}  // namespace agmm
