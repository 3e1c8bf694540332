// The transport's settings of UCX.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/transport/types.h"
#include "kernels/base/socket_address.h"

namespace agmm::transport {

// An address of this host, and the interface that has it.
struct LocalAddress {
  std::string interface;
  SocketAddress socket;  // port 0
};

// Finds the address that UCX uses for `ip`: 127.0.0.1 for all of 127.0.0.0/8, because UCX connects
// there for each of them; otherwise `ip` itself. Errors: INVALID_ARGUMENT when no interface has it,
// or it is link-local; UNAVAILABLE when that interface is down or has no link.
absl::StatusOr<LocalAddress> FindLocalAddress(const std::string& ip);

// Names and values for ucp_config_modify, without the prefix UCX_.
// Errors: FAILED_PRECONDITION when UCX cannot use the interface `device`.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> UcxSettings(
    const TransportOptions& options, const std::string& device);

// "ucx 1.13.1, tcp, active messages, rendezvous from 64 KiB".
std::string UcxDescription();

// Prevents UCX from loading its CUDA modules, unless the environment sets UCX_MODULES: it never
// handles GPU memory, and its modules would open the driver in addition to the devices. Must be
// called before ucp_init.
void LeaveOutCuda();

// Removes the handlers for fatal signals and SIGHUP that UCX's library installs when it is loaded,
// unless the environment sets UCX_HANDLE_ERRORS. One call is enough.
void ReturnSignals();

}  // namespace agmm::transport
