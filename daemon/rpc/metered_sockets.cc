#include "daemon/rpc/metered_sockets.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/string_view.h"
#include "kernels/base/clock.h"

namespace agmm {
namespace {

struct Metered {
  const void* owner;
  std::shared_ptr<FrameMeter> meter;
  std::function<void(const std::string&)> broken;
  uint64_t cookie;  // the socket's, because its number may be reused
};

// One for the process, like the functions of libc.
struct MeteredSockets {
  std::shared_mutex mutex;
  std::unordered_map<int, Metered> sockets;  // guarded by mutex
  std::atomic<size_t> count = 0;             // so that processes without any pay nothing
};

MeteredSockets& metered() {
  static MeteredSockets* const made = new MeteredSockets;  // libraries call until the end
  return *made;
}

uint64_t CookieOf(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof(cookie);
  getsockopt(fd, SOL_SOCKET, SO_COOKIE, &cookie, &size);
  return cookie;
}

// Passes the first `bytes` of the message to `see`, while it returns true.
template <typename See>
void ForEachPart(const msghdr& message, ssize_t bytes, See see) {
  size_t left = static_cast<size_t>(bytes);
  bool more = true;
  for (size_t i = 0; i < message.msg_iovlen && left > 0 && more; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t size = std::min(left, part.iov_len);
    more = see(absl::string_view(static_cast<const char*>(part.iov_base), size));
    left -= size;
  }
}

// Runs `use` with the meter of `fd`, if it has one, and with a shared lock, so that Unmeter waits.
template <typename Use>
bool WithMeter(int fd, Use use) {
  MeteredSockets& all = metered();
  if (all.count == 0) return true;
  const int error = errno;
  bool result = true;
  {
    std::shared_lock lock(all.mutex);
    const auto it = all.sockets.find(fd);
    if (it != all.sockets.end() && CookieOf(fd) == it->second.cookie) result = use(it->second);
  }
  errno = error;
  return result;
}

// Returns false if the connection has to break.
bool Received(int fd, const msghdr& message, ssize_t bytes) {
  return WithMeter(fd, [&](const Metered& socket) {
    const int64_t now_ns = MonotonicNanos();
    std::string why;
    ForEachPart(message, bytes, [&](absl::string_view part) {
      why = socket.meter->Received(part, now_ns);
      return why.empty();
    });
    if (!why.empty()) socket.broken(why);
    return why.empty();
  });
}

void Sent(int fd, const msghdr& message, ssize_t bytes) {
  WithMeter(fd, [&](const Metered& socket) {
    ForEachPart(message, bytes, [&](absl::string_view part) {
      socket.meter->Sent(part);
      return true;
    });
    return true;
  });
}

}  // namespace

void Meter(int fd, const void* owner, std::shared_ptr<FrameMeter> meter,
           std::function<void(const std::string&)> broken) {
  MeteredSockets& all = metered();
  const uint64_t cookie = CookieOf(fd);
  std::lock_guard lock(all.mutex);
  all.sockets[fd] = {owner, std::move(meter), std::move(broken), cookie};
  all.count = all.sockets.size();
}

void Unmeter(const void* owner) {
  MeteredSockets& all = metered();
  std::lock_guard lock(all.mutex);
  std::erase_if(all.sockets, [owner](const auto& entry) { return entry.second.owner == owner; });
  all.count = all.sockets.size();
}

}  // namespace agmm

// The functions below replace libc's own for this process. They call the kernel directly, because a
// sanitizer would attribute libc calls from here to this code, and does not see the order that
// gRPC's locks give.
extern "C" {

ssize_t recvmsg(int fd, msghdr* message, int flags) {
  const ssize_t bytes = syscall(SYS_recvmsg, fd, message, flags);
  if (bytes <= 0 || agmm::Received(fd, *message, bytes)) return bytes;
  errno = ECONNRESET;
  return -1;
}

ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  const ssize_t bytes = syscall(SYS_sendmsg, fd, message, flags);
  if (bytes > 0) agmm::Sent(fd, *message, bytes);
  return bytes;
}

}  // extern "C"
