#include "daemon/rpc/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "daemon/link/protocol.h"
#include "daemon/rpc/metered_sockets.h"
#include "kernels/base/clock.h"
#include "kernels/base/socket_address.h"
#include "kernels/base/status.h"
#include "kernels/base/thread.h"

namespace agmm {
namespace {

constexpr int kAtOnce = 64;  // so that no listener keeps another one waiting
constexpr int64_t kWarningPeriod_ns = 2'000'000'000;
// The pause before the next attempt to get a descriptor.
constexpr int64_t kDescriptorPause_ms = 20;
// Resets, pings and settings of the clients at a host. A call that was reset costs some 20 KB until
// it has ended.
constexpr int64_t kControl = 2'000, kControlPerSecond = 1'000;
// Left to a host for it to connect.
constexpr int64_t kLeastAllowance = 200;

// As grpc::ServerContext::peer names it.
std::string GrpcName(const SocketAddress& peer) {
  if (peer.bytes.ss_family == AF_UNIX) return "unix:";
  if (peer.bytes.ss_family == AF_INET) return absl::StrCat("ipv4:", peer.ToString());
  constexpr absl::string_view kMapped = "[::ffff:";
  const std::string text = peer.ToString();
  if (IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6&>(peer.bytes).sin6_addr))
    return absl::StrCat("ipv4:", absl::StrReplaceAll(text.substr(kMapped.size()), {{"]", ""}}));
  return absl::StrCat("ipv6:", absl::StrReplaceAll(text, {{"[", "%5B"}, {"]", "%5D"}}));
}

}  // namespace

Acceptor::Acceptor(std::vector<int> listeners, size_t bound, std::unique_ptr<Server> server,
                   Metrics* metrics)
    : listeners_(std::move(listeners)),
      bound_(bound),
      server_(std::move(server)),
      refused_(metrics->counter("rpc_connections_refused_total")),
      broken_(metrics->counter("rpc_connections_broken_total")),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      spare_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  for (int fd : listeners_) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
    epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &event);
  }
  epoll_event event{.events = EPOLLIN, .data = {.fd = stop_}};
  epoll_ctl(poll_, EPOLL_CTL_ADD, stop_, &event);
}

absl::Status Acceptor::Start() {
  AGMM_ASSIGN_OR_RETURN(thread_, StartThread("accepting connections", [this] { Loop(); }));
  return absl::OkStatus();
}

void Acceptor::Stop() {
  if (std::exchange(stopped_, true)) return;
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  std::lock_guard lock(mutex_);
  for (const auto& [second, connection] : open_) {
    Unmeter(connection.fd, connection.meter.get());
    close(second);
  }
  open_.clear();
  for (int fd : listeners_) close(fd);
  for (int fd : {poll_, stop_, spare_})
    if (fd >= 0) close(fd);
}

void Acceptor::Trust(absl::string_view peer) {
  std::lock_guard lock(mutex_);
  for (const auto& [second, connection] : open_)
    if (connection.peer == peer) connection.meter->Trust();
}

void Acceptor::Loop() {
  while (true) {
    epoll_event events[kAtOnce];
    const int count = epoll_wait(poll_, events, kAtOnce, -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == stop_) return;
      if (std::find(listeners_.begin(), listeners_.end(), fd) != listeners_.end()) {
        AcceptFrom(fd);
      } else {
        Forget(fd);
      }
    }
  }
}

void Acceptor::AcceptFrom(int listener) {
  for (int count = 0; count < kAtOnce; ++count) {
    int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
      const std::string why = absl::StrFormat("%s; raise ulimit -n", std::strerror(errno));
      // The connection would otherwise wait, and the listener stay readable for ever.
      if (spare_ >= 0) close(spare_);
      fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) Refuse(fd, why);
      spare_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
      if (fd >= 0 && spare_ >= 0) continue;
      usleep(kDescriptorPause_ms * 1000);
      return;
    }
    if (fd < 0) return;
    Take(fd);
  }
}

void Acceptor::Take(int fd) {
  SocketAddress peer;
  if (getpeername(fd, peer.get(), &peer.size) != 0) {
    close(fd);  // left already
    return;
  }
  {
    std::lock_guard lock(mutex_);
    if (open_.size() >= bound_) {
      return Refuse(fd, absl::StrFormat("%d connections are open, which is the bound; end clients "
                                        "that are not needed, or raise ulimit -n",
                                        bound_));
    }
  }
  const std::shared_ptr<Allowance> allowance = AllowanceOf(peer);
  if (allowance->Left(MonotonicNanos()) < kLeastAllowance)
    return Refuse(fd, absl::StrFormat("%s floods this daemon", GrpcName(peer)));
  if (peer.bytes.ss_family != AF_UNIX) {
    const int on = 1, silence_ms = kKeepaliveTimeoutMs;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
  }
  // Tells when the connection ends, also if this side does: gRPC shuts it down before it closes its
  // own.
  const int second = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (second < 0) return Refuse(fd, absl::StrFormat("%s; raise ulimit -n", std::strerror(errno)));
  Connection connection{fd, GrpcName(peer), std::make_shared<FrameMeter>(allowance)};
  Meter(fd, connection.meter, [this, allowance, name = connection.peer] {
    broken_->Add();
    Warn(
        absl::StrFormat("broke the connection of %s: more than %d resets, pings and settings at "
                        "once and %d a second from there, or too many calls",
                        name, allowance->most(), allowance->per_second()));
  });
  {
    std::lock_guard lock(mutex_);
    open_[second] = std::move(connection);
  }
  epoll_event event{.events = 0, .data = {.fd = second}};
  epoll_ctl(poll_, EPOLL_CTL_ADD, second, &event);
  Server::NewConnectionParameters parameters;
  parameters.fd = fd;
  server_->HandleNewConnection(&parameters);
}

std::shared_ptr<Allowance> Acceptor::AllowanceOf(const SocketAddress& peer) {
  const std::string host =
      peer.bytes.ss_family == AF_UNIX ? "" : peer.ToString().substr(0, peer.ToString().rfind(':'));
  const int64_t now_ns = MonotonicNanos();
  if (allowances_.size() >= 2 * bound_) {
    std::erase_if(allowances_, [now_ns](const auto& entry) {
      return entry.second.use_count() == 1 && entry.second->Left(now_ns) == entry.second->most();
    });
  }
  std::shared_ptr<Allowance>& allowance = allowances_[host];
  if (allowance == nullptr) allowance = std::make_shared<Allowance>(kControl, kControlPerSecond);
  return allowance;
}

void Acceptor::Refuse(int fd, absl::string_view why) {
  close(fd);
  refused_->Add();
  Warn(absl::StrCat("refused a connection: ", why));
}

void Acceptor::Warn(const std::string& what) {
  const int64_t now_ns = MonotonicNanos();
  int64_t due_ns = next_warning_ns_;
  if (now_ns < due_ns ||
      !next_warning_ns_.compare_exchange_strong(due_ns, now_ns + kWarningPeriod_ns))
    return;
  spdlog::warn("{}", what);
}

void Acceptor::Forget(int second) {
  std::lock_guard lock(mutex_);
  // gRPC's descriptor may still keep the socket, and with it this entry.
  epoll_ctl(poll_, EPOLL_CTL_DEL, second, nullptr);
  const auto it = open_.find(second);
  Unmeter(it->second.fd, it->second.meter.get());
  open_.erase(it);
  close(second);
}

}  // namespace agmm
