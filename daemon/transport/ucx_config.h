// The transport's settings of UCX.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/transport/types.h"

namespace agmm::transport {

// Names and values for ucp_config_modify, without the prefix UCX_.
// Errors: INVALID_ARGUMENT when no interface has the bind address.
absl::StatusOr<std::vector<std::pair<std::string, std::string>>> UcxSettings(
    const TransportOptions& options);

// "ucx 1.13.1, tcp, active messages, rendezvous from 64 KiB".
std::string UcxDescription();

// Keeps UCX from loading its CUDA modules, unless the environment sets UCX_MODULES: it is never
// handed memory of a GPU, and its modules would open the driver beside the devices. Before
// ucp_init.
void LeaveOutCuda();

// Removes the handlers that UCX's library installs when it is loaded, for fatal signals and SIGHUP,
// unless the environment sets UCX_HANDLE_ERRORS. Once is enough.
void ReturnSignals();

}  // namespace agmm::transport
