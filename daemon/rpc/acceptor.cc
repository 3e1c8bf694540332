#include "daemon/rpc/acceptor.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
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

// Connections accepted from one listener before the others have their turn.
constexpr int kAtOnce = 64;
constexpr int64_t kWarningPeriod_ns = 2'000'000'000;
// The pause before the next attempt to accept if descriptors or memory are short.
constexpr int64_t kPause_ms = 20;
// A host with less of HostBounds::control left gets no connection.
constexpr double kLeastControl = 0.05;
constexpr int64_t kHeldByAll = 2;       // times HostBounds::held_header_bytes
constexpr int64_t kStrainedPart = 100;  // of HostBounds::control_per_second
// Time for a daemon to prove that it belongs to the world.
constexpr int64_t kTrustLimit_ns = 10'000'000'000;
constexpr int kTrustCheck_ms = 1'000;

// Plain system calls. gRPC closes the descriptors that are accepted here in a way that the thread
// sanitizer does not see, so it must not see that they were opened, either.
int Accept(int listener) {
  return static_cast<int>(
      syscall(SYS_accept4, listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}
void Close(int fd) { syscall(SYS_close, fd); }
bool Watch(int poll, int fd, uint32_t events) {
  epoll_event event{.events = events, .data = {.fd = fd}};
  return syscall(SYS_epoll_ctl, poll, EPOLL_CTL_ADD, fd, &event) == 0;
}
void Unwatch(int poll, int fd) { syscall(SYS_epoll_ctl, poll, EPOLL_CTL_DEL, fd, nullptr); }

// Returns the name that grpc::ServerContext::peer uses.
std::string GrpcName(const SocketAddress& peer) {
  if (peer.bytes.ss_family == AF_UNIX) return "unix:";
  if (peer.bytes.ss_family == AF_INET) return absl::StrCat("ipv4:", peer.ToString());
  constexpr absl::string_view kMapped = "[::ffff:";
  const std::string text = peer.ToString();
  if (IN6_IS_ADDR_V4MAPPED(&reinterpret_cast<const sockaddr_in6&>(peer.bytes).sin6_addr))
    return absl::StrCat("ipv4:", absl::StrReplaceAll(text.substr(kMapped.size()), {{"]", ""}}));
  return absl::StrCat("ipv6:", absl::StrReplaceAll(text, {{"[", "%5B"}, {"]", "%5D"}}));
}

// Returns a name for the peer's host: its IPv4 address, or the 64 network bits of its IPv6 address,
// because a host may have all addresses of its network.
std::string HostName(const SocketAddress& peer) {
  if (peer.bytes.ss_family == AF_UNIX) return "";
  const std::string name = GrpcName(peer);
  if (!absl::StartsWith(name, "ipv6:")) return name.substr(0, name.rfind(':'));
  const auto& address = reinterpret_cast<const sockaddr_in6&>(peer.bytes).sin6_addr;
  return std::string(reinterpret_cast<const char*>(address.s6_addr), 8);
}

}  // namespace

Acceptor::Acceptor(std::vector<int> listeners, Bounds bounds, std::unique_ptr<Server> server,
                   Metrics* metrics)
    : listeners_(std::move(listeners)),
      bounds_(bounds),
      server_(std::move(server)),
      refused_(metrics->counter("rpc_connections_refused_total")),
      broken_(metrics->counter("rpc_connections_broken_total")),
      poll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_(eventfd(0, EFD_CLOEXEC)),
      held_headers_{.most_bytes = kHeldByAll * bounds.host.held_header_bytes,
                    .most_connections = static_cast<int64_t>(bounds.connections)} {}

absl::Status Acceptor::Start() {
  std::vector<int> watched = listeners_;
  watched.push_back(stop_);
  for (int fd : watched) {
    if (!Watch(poll_, fd, EPOLLIN)) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "the listening sockets cannot be watched: %s; raise ulimit -n", std::strerror(errno)));
    }
  }
  AGMM_ASSIGN_OR_RETURN(thread_, StartThread("accepting connections", [this] { Loop(); }));
  return absl::OkStatus();
}

void Acceptor::Stop() {
  if (std::exchange(stopped_, true)) return;
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  Unmeter(this);
  std::lock_guard lock(mutex_);
  for (const auto& [duplicate, connection] : open_) Close(duplicate);
  open_.clear();
  for (int fd : listeners_) close(fd);
  for (int fd : {poll_, stop_})
    if (fd >= 0) close(fd);
}

bool Acceptor::Trust(absl::string_view peer) {
  std::lock_guard lock(mutex_);
  bool found = false;
  for (const auto& [duplicate, connection] : open_) {
    if (connection.peer != peer) continue;
    // A connection that has ended may still be here with the same name.
    connection.meter->Trust();
    found = true;
  }
  return found;
}

int64_t Acceptor::ControlPerSecond() const {
  return bounds_.host.control_per_second / (strained_ ? kStrainedPart : 1);
}

void Acceptor::SetStrained(bool strained) {
  std::lock_guard lock(mutex_);
  if (std::exchange(strained_, strained) == strained) return;
  const int64_t now_ns = MonotonicNanos();
  for (const auto& [name, host] : hosts_) host->control.SetPerSecond(ControlPerSecond(), now_ns);
}

void Acceptor::Loop() {
  while (true) {
    epoll_event events[kAtOnce];
    const int wait_ms = bounds_.members_only ? CloseUntrusted() : -1;
    const int count = epoll_wait(poll_, events, kAtOnce, wait_ms);
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

int Acceptor::CloseUntrusted() {
  const int64_t before_ns = MonotonicNanos() - kTrustLimit_ns;
  int wait_ms = -1;
  std::lock_guard lock(mutex_);
  for (const auto& [duplicate, connection] : open_) {
    if (connection.meter->trusted()) continue;
    wait_ms = kTrustCheck_ms;
    if (connection.since_ns < before_ns) shutdown(duplicate, SHUT_RDWR);
  }
  return wait_ms;
}

void Acceptor::AcceptFrom(int listener) {
  for (int count = 0; count < kAtOnce; ++count) {
    const int fd = Accept(listener);
    if (fd >= 0) {
      Take(fd);
      continue;
    }
    if (errno == EAGAIN) return;
    const int error = errno;
    if ((error == EMFILE || error == ENFILE) && spare_.Refuse(listener)) {
      Refused(absl::StrFormat("%s; raise ulimit -n", std::strerror(error)));
      if (spare_.kept()) continue;
    }
    // Other errors mean that the connection has already broken, or that memory is short.
    if (error != ECONNABORTED && error != EINTR) usleep(kPause_ms * 1000);
  }
}

std::string Acceptor::ReasonToRefuse(const SocketAddress& peer, HostLoad& host) {
  const char* const next = "end clients that are not needed, or raise ulimit -n";
  {
    std::lock_guard lock(mutex_);
    if (open_.size() >= bounds_.connections) {
      return absl::StrFormat("%d connections are open, which is the bound; %s", open_.size(), next);
    }
  }
  const int most = static_cast<int>(bounds_.connections / 2);
  if (peer.bytes.ss_family != AF_UNIX && host.connections >= most) {
    return absl::StrFormat("%s's host has %d connections, which is the bound for one host; %s",
                           GrpcName(peer), most, next);
  }
  if (host.control.Left(MonotonicNanos()) < kLeastControl * bounds_.host.control)
    return absl::StrCat(GrpcName(peer), "'s host floods this daemon");
  return "";
}

void Acceptor::Take(int fd) {
  SocketAddress peer;
  if (getpeername(fd, peer.get(), &peer.size) != 0) {
    Close(fd);  // left already
    return;
  }
  const std::shared_ptr<HostLoad> host = HostOf(peer);
  if (const std::string why = ReasonToRefuse(peer, *host); !why.empty()) return Refuse(fd, why);
  if (peer.bytes.ss_family != AF_UNIX) {
    const int on = 1, silence_ms = kKeepaliveTimeoutMs;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof(silence_ms));
  }
  // When either side ends the connection, a duplicate of the descriptor reports a hang-up, because
  // gRPC shuts down a socket before it closes its descriptor.
  const int duplicate = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (duplicate < 0 || !Watch(poll_, duplicate, 0)) {
    const std::string error = std::strerror(errno);
    if (duplicate >= 0) Close(duplicate);
    return Refuse(fd, error + "; raise ulimit -n");
  }
  const auto meter = std::make_shared<FrameMeter>(host);
  const std::string name = GrpcName(peer);
  Meter(fd, this, meter, [this, name](const std::string& why) {
    broken_->Add();
    Warn(&next_broken_ns_, absl::StrCat("broke the connection of ", name, ": ", why));
  });
  {
    std::lock_guard lock(mutex_);
    open_[duplicate] = {name, meter, MonotonicNanos()};
  }
  Server::NewConnectionParameters parameters;
  parameters.fd = fd;
  server_->HandleNewConnection(&parameters);
}

std::shared_ptr<HostLoad> Acceptor::HostOf(const SocketAddress& peer) {
  const int64_t now_ns = MonotonicNanos();
  std::lock_guard lock(mutex_);
  if (hosts_.size() >= 2 * bounds_.connections) {
    std::erase_if(hosts_, [now_ns](const auto& entry) {
      HostLoad& host = *entry.second;
      return host.connections == 0 && host.control.Left(now_ns) == host.control.most();
    });
  }
  std::shared_ptr<HostLoad>& host = hosts_[HostName(peer)];
  if (host == nullptr)
    host.reset(
        new HostLoad{.control = {bounds_.host.control, ControlPerSecond()},
                     .headers = {bounds_.host.header_bytes, bounds_.host.header_bytes_per_second},
                     .max_open = bounds_.host.open_calls,
                     .max_held = bounds_.host.held_header_bytes,
                     .held_by_all = &held_headers_});
  return host;
}

void Acceptor::Refuse(int fd, absl::string_view why) {
  Close(fd);
  Refused(why);
}

void Acceptor::Refused(absl::string_view why) {
  refused_->Add();
  Warn(&next_refused_ns_, absl::StrCat("refused a connection: ", why));
}

void Acceptor::Warn(std::atomic<int64_t>* next_ns, const std::string& what) {
  const int64_t now_ns = MonotonicNanos();
  int64_t due_ns = *next_ns;
  if (now_ns < due_ns || !next_ns->compare_exchange_strong(due_ns, now_ns + kWarningPeriod_ns))
    return;
  spdlog::warn("{}", what);
}

void Acceptor::Forget(int duplicate) {
  std::lock_guard lock(mutex_);
  // gRPC's descriptor may still keep the socket, and with it the epoll entry.
  Unwatch(poll_, duplicate);
  const auto it = open_.find(duplicate);
  // The meter stays until another socket has this number, because gRPC may still read received
  // bytes.
  it->second.meter->Close(MonotonicNanos());
  open_.erase(it);
  Close(duplicate);
}

}  // namespace agmm
