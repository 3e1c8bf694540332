// Finds addresses that only this host can reach, in a world of several hosts.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "daemon/config/config.h"

namespace agmm {

// Returns `config` with the IP addresses to which this host resolves its own node and the first
// node; none for an unknown name. May take seconds.
Config ResolveNodes(Config config);

// Returns a warning if, on this host, the first node's address is a loopback address and this
// node's own is not: this daemon would search for the first node on its own host. Else returns "".
// `config` is from ResolveNodes.
std::string LoopbackPeer(const Config& config);

// Checks that the other nodes can reach this one: the addresses at which it listens for them are
// not loopback addresses, unless theirs are, too. Resolves names, which may take seconds. Errors:
// INVALID_ARGUMENT, with the name, its addresses, and an alternative.
absl::Status CheckReachable(const Config& config);

}  // namespace agmm
