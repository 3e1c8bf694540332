// Which sockets of UCX belong to gates. The functions of libc that UCX's TCP transport calls are
// defined in socket_calls.cc and look here; all other calls go on to libc.
#pragma once

#include <string>

namespace agmm::transport {

class Gate;
struct GateAddress;

// The next socket that this thread listens on belongs to `gate`.
void SetOpeningGate(Gate* gate);
// Connections of this process to `door` begin with a token. Forgotten with `gate`.
void KnowDoor(const Gate* gate, const GateAddress& door, const std::string& secret);
void ForgetGate(const Gate* gate);

}  // namespace agmm::transport
