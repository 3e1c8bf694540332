// The address of a transport, which is opaque to the code that forwards it in the hello.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/base/socket_address.h"

namespace agmm::transport {

// A HandshakeListener's socket, and the random bytes from which tokens for it are made.
struct ListenerAddress {
  SocketAddress socket;
  std::string salt;
};

struct TransportAddress {
  ListenerAddress listener;
  std::string worker;  // UCX's own
};

// Adds a mark and a checksum, so that other bytes are refused before UCX parses them.
std::string Frame(const TransportAddress& address);
// Errors: INVALID_ARGUMENT.
absl::StatusOr<TransportAddress> Unframe(absl::string_view framed);

}  // namespace agmm::transport
