// The address of a daemon, as people write it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm {

// The words of one program in errors. The defaults are true of all languages of the library.
struct Wording {
  std::string endpoint;  // follows advice to give an endpoint: " with --endpoint"
};

struct Endpoint {
  std::string text;         // for messages: "unix:/run/agmm/agmmd.sock", "10.0.0.1:7101"
  std::string target;       // for gRPC
  std::string socket_path;  // empty for TCP
  Wording wording;
};

// Parses "unix:/path", "/path" or "host:port". Empty means $AGMM_ENDPOINT, else the local daemon's
// socket: /run/agmm/agmmd.sock for root, $XDG_RUNTIME_DIR/agmm/agmmd.sock for other users.
// Errors: INVALID_ARGUMENT.
absl::StatusOr<Endpoint> ResolveEndpoint(absl::string_view given, const Wording& wording = {});

}  // namespace agmm
