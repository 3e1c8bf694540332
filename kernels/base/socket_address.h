// Addresses of sockets, of either family of IP.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>

namespace agmm {

struct SocketAddress {
  // Copies an address of the system. Returns nothing for null, or for an address of another family.
  static std::optional<SocketAddress> Of(const sockaddr* address);
  // Returns the address that `ip` spells in full, with port 0, or nothing for any other text.
  static std::optional<SocketAddress> OfIp(const std::string& ip);

  sockaddr_storage bytes = {};
  socklen_t size = sizeof(bytes);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
  int port() const;
  void set_port(int port);
  // 127.0.0.0/8 or ::1.
  bool is_loopback() const;
  // 169.254.0.0/16 or fe80::/10.
  bool is_link_local() const;
  // "10.0.0.1", "::1".
  std::string ip() const;
  // "10.0.0.1:7301", "[::1]:7301".
  std::string ToString() const;
};

}  // namespace agmm
