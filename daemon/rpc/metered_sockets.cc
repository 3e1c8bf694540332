#include "daemon/rpc/metered_sockets.h"

#include <dlfcn.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "kernels/base/clock.h"

namespace agmm {
namespace {

struct Metered {
  std::shared_ptr<FrameMeter> meter;
  std::function<void()> broken;
  uint64_t cookie;  // of the socket: its number may be another one's after gRPC has closed it
};

// One for the process, like the functions of libc.
struct MeteredSockets {
  std::mutex mutex;
  std::unordered_map<int, Metered> sockets;
  std::atomic<size_t> count = 0;  // so that processes without any pay nothing
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

// False if the connection has to break.
bool Pass(int fd, const msghdr& message, ssize_t bytes) {
  MeteredSockets& all = metered();
  std::shared_ptr<FrameMeter> meter;
  uint64_t cookie;
  {
    std::lock_guard lock(all.mutex);
    const auto it = all.sockets.find(fd);
    if (it == all.sockets.end()) return true;
    meter = it->second.meter;
    cookie = it->second.cookie;
  }
  if (CookieOf(fd) != cookie) return true;
  const int64_t now_ns = MonotonicNanos();
  size_t left = static_cast<size_t>(bytes);
  bool fine = true;
  for (size_t i = 0; i < message.msg_iovlen && left > 0; ++i) {
    const iovec& part = message.msg_iov[i];
    const size_t size = std::min(left, part.iov_len);
    fine = fine && meter->Read({static_cast<const char*>(part.iov_base), size}, now_ns);
    left -= size;
  }
  if (fine) return true;
  std::function<void()> broken;
  {
    std::lock_guard lock(all.mutex);
    const auto it = all.sockets.find(fd);
    if (it != all.sockets.end() && it->second.meter == meter) broken = it->second.broken;
  }
  if (broken != nullptr) broken();
  return false;
}

}  // namespace

void Meter(int fd, std::shared_ptr<FrameMeter> meter, std::function<void()> broken) {
  MeteredSockets& all = metered();
  const uint64_t cookie = CookieOf(fd);
  std::lock_guard lock(all.mutex);
  all.sockets[fd] = {std::move(meter), std::move(broken), cookie};
  all.count = all.sockets.size();
}

void Unmeter(int fd, const FrameMeter* meter) {
  MeteredSockets& all = metered();
  std::lock_guard lock(all.mutex);
  const auto it = all.sockets.find(fd);
  if (it == all.sockets.end() || it->second.meter.get() != meter) return;
  all.sockets.erase(it);
  all.count = all.sockets.size();
}

}  // namespace agmm

// In front of libc's own, for this process.
extern "C" ssize_t recvmsg(int fd, msghdr* message, int flags) {
  using Function = decltype(recvmsg);
  static auto* const next = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "recvmsg"));
  const ssize_t bytes = next(fd, message, flags);
  if (bytes <= 0 || agmm::metered().count == 0 || agmm::Pass(fd, *message, bytes)) return bytes;
  errno = ECONNRESET;
  return -1;
}
