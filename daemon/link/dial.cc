#include "daemon/link/dial.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/deadline.h"
#include "kernels/base/host_port.h"
#include "kernels/base/thread.h"

namespace agmm {
namespace {

// Long enough for an answer from a distant host.
constexpr absl::Duration kDialPatience = absl::Seconds(2);

std::string AnswersOf(const std::string& address) {
  const absl::StatusOr<HostPort> at = ParseHostPort(address, 1);
  if (!at.ok()) return std::string(at.status().message());
  absl::StatusOr<std::vector<SocketAddress>> to = Resolve(at->host, at->port);
  if (!to.ok()) return std::string(to.status().message());
  return Dial(*std::move(to)).Answers(kDialPatience);
}

}  // namespace

std::string DialAnswer(absl::string_view to, int error) {
  switch (error) {
    case 0: return absl::StrCat(to, " accepted a connection, so no firewall is in the way");
    case ECONNREFUSED:
      return absl::StrCat(to, " refused (agmmd does not run there, or a firewall rejects it)");
    case ETIMEDOUT:
      return absl::StrCat(to,
                          " did not answer (a firewall drops the packets, or the host is down)");
    default: return absl::StrFormat("%s is unreachable (%s)", to, std::strerror(error));
  }
}

Dial::Dial(std::vector<SocketAddress> to) {
  for (SocketAddress& address : to) {
    Attempt attempt{.to = address};
    attempt.fd = socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (attempt.fd < 0 || connect(attempt.fd, address.get(), address.size) != 0)
      attempt.error = errno;
    attempts_.push_back(attempt);
  }
}

Dial::~Dial() {
  for (const Attempt& attempt : attempts_)
    if (attempt.fd >= 0) close(attempt.fd);
}

std::string Dial::Answers(absl::Duration patience) {
  const Deadline end = Deadline::After(patience);
  while (true) {
    std::vector<pollfd> open;
    for (const Attempt& attempt : attempts_)
      if (attempt.error == EINPROGRESS) open.push_back({attempt.fd, POLLOUT, 0});
    if (open.empty()) break;
    // Polls at least once, even if `patience` is zero.
    const int64_t left_ms = absl::ToInt64Milliseconds(end.Left());
    poll(open.data(), open.size(), static_cast<int>(std::max<int64_t>(left_ms, 0)));
    for (Attempt& attempt : attempts_) {
      const bool over = std::any_of(open.begin(), open.end(), [&](const pollfd& one) {
        return one.fd == attempt.fd && one.revents != 0;
      });
      socklen_t size = sizeof(attempt.error);
      if (over) getsockopt(attempt.fd, SOL_SOCKET, SO_ERROR, &attempt.error, &size);
    }
    if (left_ms <= 0) break;
  }
  return absl::StrJoin(attempts_, "; ", [](std::string* out, const Attempt& attempt) {
    const int error = attempt.error == EINPROGRESS ? ETIMEDOUT : attempt.error;
    absl::StrAppend(out, DialAnswer(attempt.to.ToString(), error));
  });
}

Dialer::~Dialer() {
  if (thread_.joinable()) thread_.join();
}

void Dialer::Try(const std::string& address, std::function<void(const std::string& answers)> say) {
  if (busy_.exchange(true)) return;
  if (thread_.joinable()) thread_.join();  // the thread is about to end
  absl::StatusOr<std::thread> thread = StartThread("an attempt to connect", [this, address, say] {
    say(AnswersOf(address));
    busy_ = false;
  });
  if (thread.ok()) {
    thread_ = *std::move(thread);
    return;
  }
  say(std::string(thread.status().message()));
  busy_ = false;
}

}  // namespace agmm
