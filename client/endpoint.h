// Where a daemon listens, as people write it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm {

struct Endpoint {
  std::string text;         // as errors name it: "unix:/run/agmm/agmmd.sock", "10.0.0.1:7101"
  std::string target;       // as gRPC dials it
  std::string socket_path;  // of a unix socket, else empty
};

// "unix:/path", "/path" or "host:port"; empty: $AGMM_ENDPOINT, else the local daemon's socket,
// which is /run/agmm/agmmd.sock for root and $XDG_RUNTIME_DIR/agmm/agmmd.sock for others.
// Errors: INVALID_ARGUMENT.
absl::StatusOr<Endpoint> ResolveEndpoint(absl::string_view given);

}  // namespace agmm
