#include "kernels/base/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>
#include <cstring>

#include "absl/strings/str_format.h"

namespace agmm {
namespace {

in_port_t& PortOf(sockaddr_storage& bytes) {
  return bytes.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bytes).sin6_port
                                     : reinterpret_cast<sockaddr_in&>(bytes).sin_port;
}

}  // namespace

int SocketAddress::port() const { return ntohs(PortOf(const_cast<sockaddr_storage&>(bytes))); }
void SocketAddress::set_port(int port) { PortOf(bytes) = htons(static_cast<uint16_t>(port)); }

std::optional<SocketAddress> SocketAddress::Of(const sockaddr* address) {
  SocketAddress copy;
  if (address == nullptr) return std::nullopt;
  if (address->sa_family == AF_INET) {
    copy.size = sizeof(sockaddr_in);
  } else if (address->sa_family == AF_INET6) {
    copy.size = sizeof(sockaddr_in6);
  } else {
    return std::nullopt;
  }
  std::memcpy(&copy.bytes, address, copy.size);
  return copy;
}

std::optional<SocketAddress> SocketAddress::OfIp(const std::string& ip) {
  SocketAddress address;
  auto& in = reinterpret_cast<sockaddr_in&>(address.bytes);
  auto& in6 = reinterpret_cast<sockaddr_in6&>(address.bytes);
  if (inet_pton(AF_INET, ip.c_str(), &in.sin_addr) == 1) {
    in.sin_family = AF_INET;
    address.size = sizeof(in);
  } else if (inet_pton(AF_INET6, ip.c_str(), &in6.sin6_addr) == 1) {
    in6.sin6_family = AF_INET6;
    address.size = sizeof(in6);
  } else {
    return std::nullopt;
  }
  return address;
}

bool SocketAddress::is_loopback() const {
  if (bytes.ss_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(bytes).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(bytes).sin_addr.s_addr) >> 24 == 127;
}

bool SocketAddress::is_link_local() const {
  if (bytes.ss_family == AF_INET6)
    return IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6&>(bytes).sin6_addr);
  return ntohl(reinterpret_cast<const sockaddr_in&>(bytes).sin_addr.s_addr) >> 16 == 0xa9fe;
}

std::string SocketAddress::ip() const {
  char text[INET6_ADDRSTRLEN] = "?";
  const void* const address =
      bytes.ss_family == AF_INET6
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6&>(bytes).sin6_addr)
          : &reinterpret_cast<const sockaddr_in&>(bytes).sin_addr;
  inet_ntop(bytes.ss_family == AF_INET6 ? AF_INET6 : AF_INET, address, text, sizeof(text));
  return text;
}

std::string SocketAddress::ToString() const {
  return bytes.ss_family == AF_INET6 ? absl::StrFormat("[%s]:%d", ip(), port())
                                     : absl::StrFormat("%s:%d", ip(), port());
}

}  // namespace agmm
