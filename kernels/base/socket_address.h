// Addresses of sockets, of either family of IP.
#pragma once

#include <sys/socket.h>

#include <string>

namespace agmm {

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

}  // namespace agmm
