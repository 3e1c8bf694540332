#include "daemon/transport/handshake_listener.h"

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

// Connections that have not sent a whole token. One more closes the oldest, because a node of the
// world sends its token at once.
constexpr size_t kMaxPending = 256;
constexpr int64_t kHandshakeLimit_ns = 5'000'000'000;
constexpr int kBacklog = 1024;

}  // namespace

HandshakeListener::HandshakeListener(const TransportOptions& options, TransportCount* refused)
    : secret_(options.secret),
      ports_(options.ports),
      other_ports_(options.other_ports),
      refused_(refused),
      opened_(absl::FailedPreconditionError(
          "UCX opened no TCP port, so no other node could connect; set UCX_TLS=tcp,self")) {
  address_.salt = RandomBytes(kSaltBytes);
}

HandshakeListener::~HandshakeListener() {
  if (thread_.joinable()) {
    eventfd_write(stop_, 1);
    thread_.join();
  }
  // From here on UCX finds no connection, and no event.
  SocketAddress from;
  for (int fd = Accept(&from); fd >= 0; fd = Accept(&from)) close(fd);
  Forget(this);
  for (PendingConnection& connection : pending_) close(connection.fd);
  for (int fd : {listener_, stop_})
    if (fd >= 0) close(fd);
}

absl::Status HandshakeListener::Listen(int fd) {
  const auto no_descriptor = [](const char* what) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%s: %s; raise ulimit -n", what, std::strerror(errno)));
  };
  SocketAddress& where = address_.socket;
  if (getsockname(fd, where.get(), &where.size) != 0) return no_descriptor("getsockname");
  // Done first, so that UCX has an event in any case, because a socket that does not listen reports
  // a hang-up at once.
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
  AGMM_ASSIGN_OR_RETURN(thread_, StartThread("the transport's handshakes", [this] { Loop(); }));
  return absl::OkStatus();
}

bool HandshakeListener::ListenAt(int port) {
  SocketAddress& where = address_.socket;
  // The daemon binds these ports later; until then, the system may assign them like any other free
  // port.
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

void HandshakeListener::AddPeer(const ListenerAddress& peer) { SendTokens(this, peer, secret_); }

int HandshakeListener::Accept(SocketAddress* from) {
  std::lock_guard lock(mutex_);
  if (admitted_.empty()) return -1;
  eventfd_t one;
  eventfd_read(fd_, &one);
  const PendingConnection connection = std::move(admitted_.front());
  admitted_.pop_front();
  *from = connection.from;
  return connection.fd;
}

void HandshakeListener::Loop() {
  while (true) {
    std::vector<pollfd> fds = {{stop_, POLLIN, 0}, {listener_, POLLIN, 0}};
    for (const PendingConnection& connection : pending_) fds.push_back({connection.fd, POLLIN, 0});
    timespec timeout{};
    if (!pending_.empty()) {
      const int64_t left_ns = std::max<int64_t>(pending_.front().deadline_ns - MonotonicNanos(), 0);
      timeout = {left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    }
    ppoll(fds.data(), fds.size(), pending_.empty() ? nullptr : &timeout, nullptr);
    if (fds[0].revents != 0) return;
    size_t i = 2;
    for (auto it = pending_.begin(); it != pending_.end(); ++i) {
      const bool over = fds[i].revents != 0 && ReadToken(*it);
      it = over ? pending_.erase(it) : std::next(it);
    }
    while (!pending_.empty() && pending_.front().deadline_ns <= MonotonicNanos()) {
      Refuse(pending_.front());
      pending_.pop_front();
    }
    if (fds[1].revents != 0) AcceptConnections();
  }
}

void HandshakeListener::AcceptConnections() {
  // Bounded, because a flood of connections must not delay the reading of tokens.
  for (size_t count = 0; count < kMaxPending / 4; ++count) {
    PendingConnection connection;
    connection.fd = accept4(listener_, connection.from.get(), &connection.from.size, SOCK_CLOEXEC);
    if (connection.fd < 0 && (errno == EMFILE || errno == ENFILE) && spare_.Refuse(listener_)) {
      refused_->Add();
      continue;
    }
    if (connection.fd < 0) return;
    connection.deadline_ns = MonotonicNanos() + kHandshakeLimit_ns;
    pending_.push_back(std::move(connection));
    if (pending_.size() <= kMaxPending) continue;
    Refuse(pending_.front());
    pending_.pop_front();
  }
}

bool HandshakeListener::ReadToken(PendingConnection& connection) {
  char bytes[kTokenBytes];
  const ssize_t count =
      recv(connection.fd, bytes, kTokenBytes - connection.token.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (count > 0) connection.token.append(bytes, count);
  if (count <= 0 ||
      !absl::StartsWith(kTokenMark,
                        absl::string_view(connection.token).substr(0, kTokenMark.size()))) {
    Refuse(connection);
    return true;
  }
  if (connection.token.size() < kTokenBytes) return false;
  const auto number = CheckToken(connection.token, secret_, address_.salt);
  if (!number.has_value() || !used_.insert(*number).second) {
    Refuse(connection);
    return true;
  }
  std::lock_guard lock(mutex_);
  admitted_.push_back(std::move(connection));
  eventfd_write(fd_, 1);
  return true;
}

void HandshakeListener::Refuse(PendingConnection& connection) {
  close(connection.fd);
  refused_->Add();
}

}  // namespace agmm::transport
