#include "kernels/base/socket_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstdint>

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

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (bytes.ss_family == AF_INET6) {
    const auto& in6 = reinterpret_cast<const sockaddr_in6&>(bytes);
    inet_ntop(AF_INET6, &in6.sin6_addr, text, sizeof(text));
    return absl::StrFormat("[%s]:%d", text, port());
  }
  const auto& in = reinterpret_cast<const sockaddr_in&>(bytes);
  inet_ntop(AF_INET, &in.sin_addr, text, sizeof(text));
  return absl::StrFormat("%s:%d", text, port());
}

}  // namespace agmm
