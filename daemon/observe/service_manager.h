// Reports to the service manager that started this process, such as systemd.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace agmm {

// Sends `state`, lines such as "READY=1" (sd_notify(3)), to the socket that the environment
// variable NOTIFY_SOCKET names. Does nothing if the variable is not set. Errors: INVALID_ARGUMENT
// if the name is not valid for a unix socket; otherwise errno's.
absl::Status NotifyServiceManager(absl::string_view state);

}  // namespace agmm
