#include "daemon/transport/gate.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "daemon/transport/token.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "kernels/base/thread.h"

namespace agmm::transport {
namespace {

// Connections that have not shown a token yet. When there are more, the oldest one is closed,
// because a node of the world sends its token at once.
constexpr size_t kMaxVisitors = 256;
constexpr int64_t kVisit_ns = 5'000'000'000;
constexpr int kBacklog = 1024;

}  // namespace

Gate::Gate(const TransportOptions& options, TransportCount* refused)
    : secret_(options.secret),
      ports_(options.ports),
      other_ports_(options.other_ports),
      refused_(refused),
      opened_(absl::FailedPreconditionError(
          "UCX opened no TCP port, so no other node could connect; set UCX_TLS=tcp,self")) {
  address_.salt = RandomBytes(kSaltBytes);
}

Gate::~Gate() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  // From here on UCX finds no connection, and no event.
  SocketAddress from;
  for (int fd = Accept(&from); fd >= 0; fd = Accept(&from)) close(fd);
  Forget(this);
  for (Visitor& visitor : visitors_) close(visitor.fd);
  for (int fd : {listener_, stop_})
    if (fd >= 0) close(fd);
}

Gate::Opening::Opening(Gate* gate) { SetNextListener(gate); }
Gate::Opening::~Opening() { SetNextListener(nullptr); }

absl::Status Gate::Listen(int fd) {
  const auto no_descriptor = [](const char* what) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: %s; raise ulimit -n", what, std::strerror(errno)));
  };
  SocketAddress& where = address_.socket;
  if (getsockname(fd, where.get(), &where.size) != 0) return no_descriptor("getsockname");
  // First, so that UCX has an event in any case: a socket on which nothing listens hangs up at
  // once.
  const int event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
  const absl::Cleanup close_event = [event] { close(event); };
  if (event < 0 || dup3(event, fd, O_CLOEXEC) < 0) return no_descriptor("eventfd");
  fd_ = fd;
  int port = ports_.first;
  while (port <= ports_.last && !ListenAt(port)) ++port;
  if (port > ports_.last) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("no port of transport_ports \"%d-%d\" can be listened on (%s); give "
                        "a wider range or end the programs that use it",
                        ports_.first, ports_.last, std::strerror(errno)));
  }
  stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop_ < 0) return no_descriptor("eventfd");
  if (!spare_.kept()) return absl::ResourceExhaustedError("no descriptor is free; raise ulimit -n");
  AGMM_ASSIGN_OR_RETURN(thread_, StartThread("the transport's gate", [this] { Loop(); }));
  return absl::OkStatus();
}

bool Gate::ListenAt(int port) {
  SocketAddress& where = address_.socket;
  // A daemon takes these later; until then, the system may give them as any other free port.
  for (int tries = 0; tries <= static_cast<int>(other_ports_.size()); ++tries) {
    if (listener_ >= 0) close(listener_);
    listener_ = socket(where.bytes.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (listener_ < 0) return false;
    const int on = 1;
    setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    where.set_port(port);
    if (bind(listener_, where.get(), where.size) != 0 || listen(listener_, kBacklog) != 0)
      return false;
    getsockname(listener_, where.get(), &where.size);
    if (other_ports_.count(where.port()) == 0) return true;
  }
  errno = EADDRINUSE;
  return false;
}

void Gate::Know(const GateAddress& other) { ShowTokens(this, other, secret_); }

int Gate::Accept(SocketAddress* from) {
  std::lock_guard lock(mutex_);
  if (admitted_.empty()) return -1;
  eventfd_t one;
  eventfd_read(fd_, &one);
  const Visitor visitor = std::move(admitted_.front());
  admitted_.pop_front();
  *from = visitor.from;
  return visitor.fd;
}

void Gate::Loop() {
  while (true) {
    std::vector<pollfd> fds = {{stop_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const Visitor& visitor : visitors_) fds.push_back({visitor.fd, POLLIN, 0});
    timespec timeout{};
    if (!visitors_.empty()) {
      const int64_t left_ns =
          std::max<int64_t>(visitors_.front().deadline_ns - MonotonicNanos(), 0);
      timeout = {left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    }
    ppoll(fds.data(), fds.size(), visitors_.empty() ? nullptr : &timeout, nullptr);
    if (fds[0].revents != 0) return;
    size_t i = 2;
    for (auto it = visitors_.begin(); it != visitors_.end(); ++i) {
      const bool over = fds[i].revents != 0 && Hear(*it);
      it = over ? visitors_.erase(it) : std::next(it);
    }
    while (!visitors_.empty() && visitors_.front().deadline_ns <= MonotonicNanos()) {
      Refuse(visitors_.front());
      visitors_.pop_front();
    }
    if (fds[1].revents != 0) AcceptVisitors();
  }
}

void Gate::AcceptVisitors() {
  // Bounded, because a flood of connections must not keep visitors from being heard.
  for (size_t count = 0; count < kMaxVisitors / 4; ++count) {
    Visitor visitor;
    visitor.fd = accept4(listener_, visitor.from.get(), &visitor.from.size, SOCK_CLOEXEC);
    if (visitor.fd < 0 && (errno == EMFILE || errno == ENFILE) && spare_.Refuse(listener_)) {
      refused_->Add();
      continue;
    }
    if (visitor.fd < 0) return;
    visitor.deadline_ns = MonotonicNanos() + kVisit_ns;
    visitors_.push_back(std::move(visitor));
    if (visitors_.size() <= kMaxVisitors) continue;
    Refuse(visitors_.front());
    visitors_.pop_front();
  }
}

bool Gate::Hear(Visitor& visitor) {
  char bytes[kTokenBytes];
  const ssize_t count = recv(visitor.fd, bytes, kTokenBytes - visitor.said.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count > 0) visitor.said.append(bytes, count);
  if (count <= 0 ||
      !absl::StartsWith(kTokenMark, absl::string_view(visitor.said).substr(0, kTokenMark.size()))) {
    Refuse(visitor);
    return true;
  }
  if (visitor.said.size() < kTokenBytes) return false;
  const absl::StatusOr<std::string> number = CheckToken(visitor.said, secret_, address_.salt);
  if (!number.ok() || !used_.insert(*number).second) {
    Refuse(visitor);
    return true;
  }
  std::lock_guard lock(mutex_);
  admitted_.push_back(std::move(visitor));
  eventfd_write(fd_, 1);
  return true;
}

void Gate::Refuse(Visitor& visitor) {
  close(visitor.fd);
  refused_->Add();
}

}  // namespace agmm::transport
