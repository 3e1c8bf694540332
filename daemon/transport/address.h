// Where a transport is reached: opaque to all others, who pass it on in the hello.
#pragma once

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace agmm::transport {

// The address of a TCP socket.
struct SocketAddress {
  sockaddr_storage bytes = {};
  socklen_t size = sizeof(bytes);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  int port() const;
  void set_port(int port);
  // "10.0.0.1:7301", "[::1]:7301".
  std::string ToString() const;
};

// A gate's socket, and the random bytes that tokens for it are made with.
struct GateAddress {
  SocketAddress socket;
  std::string salt;
};

struct TransportAddress {
  GateAddress gate;
  std::string worker;  // UCX's own
};

// With a mark and a checksum, so that other bytes are refused before UCX parses them.
std::string Frame(const TransportAddress& address);
// Errors: INVALID_ARGUMENT.
absl::StatusOr<TransportAddress> Unframe(absl::string_view framed);

}  // namespace agmm::transport
