// Addresses that only this host reaches, in a world of several hosts.
#pragma once

#include "absl/status/status.h"
#include "daemon/config/config.h"

namespace agmm {

// Checks that the other nodes can reach this one: where it listens for them, its address is not a
// loopback one, unless theirs are, too. Resolves names, which may take seconds. Errors:
// INVALID_ARGUMENT; names the name, what it stands for, and what to give instead.
absl::Status CheckReachable(const Config& config);

}  // namespace agmm
