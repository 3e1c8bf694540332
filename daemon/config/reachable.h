// Addresses that only this host reaches, in a world of several hosts.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/config/config.h"

namespace agmm {

// Returns `config` with what this host resolves the addresses of its own node and of the first one
// to; nothing for a name that it does not know. May take seconds.
Config ResolveNodes(Config config);

// Returns a warning if the first node's address is a loopback one here and this node's own is not:
// this daemon would look for it on its own host. Else nothing. `config` is from ResolveNodes.
std::string LoopbackPeer(const Config& config);

// Checks that the other nodes can reach this one: where it listens for them, its address is not a
// loopback one, unless theirs are, too. Resolves names, which may take seconds. Errors:
// INVALID_ARGUMENT; names the name, what it stands for, and what to give instead.
absl::Status CheckReachable(const Config& config);

}  // namespace agmm
