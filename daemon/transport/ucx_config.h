// What this transport asks of UCX's configuration.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/transport/ucx_transport.h"

namespace agmm::transport {

// Names and values for ucp_config_modify, without the UCX_ in front.
// Errors: INVALID_ARGUMENT when no interface has the bind address.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> UcxSettings(
    const TransportOptions& options);

// "ucx 1.13.1, tcp, active messages, rendezvous from 64 KiB".
std::string UcxDescription(const TransportOptions& options);

// UCX installs handlers for SIGSEGV and the like, and for SIGHUP, when its library is loaded. Gives
// the signals back to the process, unless the environment asks for UCX_HANDLE_ERRORS. Once is
// enough.
void ReturnSignals();

}  // namespace agmm::transport
