#include "daemon/transport/tcp_paths.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"

namespace agmm::transport {
namespace {

std::optional<SocketAddress> NameOf(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  SocketAddress address;
  if (name(fd, address.get(), &address.size) != 0) return std::nullopt;
  if (address.get()->sa_family != AF_INET && address.get()->sa_family != AF_INET6)
    return std::nullopt;
  return address;
}

void AddUse(int fd, TcpUse* use) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  int waiting = 0;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0 ||
      ioctl(fd, SIOCOUTQ, &waiting) != 0)
    return;
  use->acked_bytes += static_cast<int64_t>(info.tcpi_bytes_acked);
  use->waiting_bytes += waiting;
  if (waiting > 0)
    use->silent_ms = std::max(use->silent_ms, static_cast<int64_t>(info.tcpi_last_ack_recv));
}

}  // namespace

void TcpPaths::Reset(int port) {
  std::lock_guard lock(mutex_);
  port_ = port;
  listeners_.clear();
}

void TcpPaths::Add(int node, const SocketAddress& listener) {
  std::lock_guard lock(mutex_);
  listeners_[node] = listener;
}

std::map<int, TcpUse> TcpPaths::Uses() const {
  std::map<std::string, int> by_listener, by_ip;  // -1: of several nodes
  int port = 0;
  {
    std::lock_guard lock(mutex_);
    port = port_;
    for (const auto& [node, listener] : listeners_) {
      by_listener[listener.ToString()] = node;
      const auto [it, added] = by_ip.emplace(listener.ip(), node);
      if (!added) it->second = -1;
    }
  }
  std::map<int, TcpUse> uses;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
       !error && entry != end; entry.increment(error)) {
    int fd = -1;
    if (!absl::SimpleAtoi(entry->path().filename().string(), &fd)) continue;
    const std::optional<SocketAddress> peer = NameOf(fd, getpeername);
    if (!peer.has_value()) continue;
    const auto ip = by_ip.find(peer->ip());
    // Nodes that share an address are skipped: the connections that they have opened cannot be told
    // apart, and a sum without these would be wrong.
    if (ip == by_ip.end() || ip->second < 0) continue;
    const std::optional<SocketAddress> self = NameOf(fd, getsockname);
    const bool opened_here = by_listener.count(peer->ToString()) > 0;
    const bool opened_there = self.has_value() && self->port() == port;
    if (opened_here || opened_there) AddUse(fd, &uses[ip->second]);
  }
  return uses;
}

}  // namespace agmm::transport
