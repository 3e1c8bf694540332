#include "daemon/rpc/listen.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/host_port.h"
#include "kernels/base/socket_address.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr absl::Duration kLockPoll = absl::Milliseconds(20);
// Bound on connections that wait for the acceptor; the kernel uses its own bound if that is less.
constexpr int kBacklog = 1024;

absl::Status Errno(absl::string_view what) { return absl::ErrnoToStatus(errno, std::string(what)); }

// Returns true if something listens there, even if it does not accept.
bool Answers(const std::string& path) {
  // Non-blocking, because a program that does not accept would delay the start.
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  const bool answers =
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 || errno == EAGAIN;
  close(fd);
  return answers;
}

absl::Status NotALock(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s is a link or is not a regular file, so it cannot be the socket's lock; remove it, or "
      "give another --socket",
      path));
}

}  // namespace

absl::Status MakeSocketFolder(const std::string& socket) {
  const std::string folder = socket.substr(0, socket.rfind('/'));
  if (folder.empty() || mkdir(folder.c_str(), 0700) == 0 || errno == EEXIST)
    return absl::OkStatus();
  return Errno(absl::StrCat("the socket's folder ", folder, " cannot be made"));
}

absl::StatusOr<std::unique_ptr<SocketLock>> SocketLock::Take(
    const std::string& path, absl::Duration patience,
    const std::function<void(const absl::Status&)>& waiting) {
  AGMM_RETURN_IF_ERROR(MakeSocketFolder(path));
  const Deadline end = Deadline::After(patience);
  for (bool told = false;; told = true) {
    absl::StatusOr<std::unique_ptr<SocketLock>> lock = TakeNow(path);
    if (!absl::IsAlreadyExists(lock.status()) || end.HasPassed()) return lock;
    if (!told) waiting(lock.status());
    absl::SleepFor(kLockPoll);
  }
}

absl::StatusOr<std::unique_ptr<SocketLock>> SocketLock::TakeNow(const std::string& path) {
  const std::string lock_path = path + ".lock";
  const int fd =
      open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  if (fd < 0 && errno == ELOOP) return NotALock(lock_path);
  if (fd < 0) return Errno(absl::StrCat("the lock ", lock_path, " cannot be opened"));
  std::unique_ptr<SocketLock> lock(new SocketLock(fd));
  // It is truncated below, so it must not be another file by a second name.
  struct stat lock_info;
  if (fstat(fd, &lock_info) != 0 || !S_ISREG(lock_info.st_mode) || lock_info.st_nlink > 1)
    return NotALock(lock_path);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    char pid[32] = {};
    if (pread(fd, pid, sizeof(pid) - 1, 0) < 0) pid[0] = '\0';
    return absl::AlreadyExistsError(absl::StrFormat(
        "socket %s is in use by pid %s; stop that daemon or give another --socket", path, pid));
  }
  // Another process may have removed the file after this one opened it.
  if (fstat(fd, &lock_info) != 0 || lock_info.st_nlink == 0) return TakeNow(path);
  if (Answers(path)) {
    return absl::AlreadyExistsError(
        absl::StrFormat("socket %s is in use by another program; give another --socket", path));
  }
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode))
      return absl::InvalidArgumentError(
          absl::StrFormat("%s exists and is not a socket; give another --socket", path));
    if (unlink(path.c_str()) != 0)
      return Errno(absl::StrCat("the old socket ", path, " cannot be removed"));
  }
  const std::string pid = absl::StrCat(getpid());
  if (ftruncate(fd, 0) != 0 ||
      pwrite(fd, pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()))
    return Errno(absl::StrCat("the lock ", lock_path, " cannot be written"));
  lock->path_ = lock_path;
  return lock;
}

// Removes the file before it releases the lock: afterwards it may be another process's.
SocketLock::~SocketLock() {
  if (!path_.empty()) unlink(path_.c_str());
  close(fd_);
}

namespace {

// Returns why `where`, an address of `address`, was not bound, from errno.
absl::Status BindError(const std::string& address, const SocketAddress& where) {
  const std::string shown = WithIps(address, {where.ip()});
  switch (errno) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(absl::StrCat(
          shown,
          " is in use; stop the program that listens there, or use another port. If none listens "
          "there, an outgoing connection holds the port (`ss -tanp` shows it): take a port "
          "outside net.ipv4.ip_local_port_range"));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(absl::StrCat(
          shown,
          " is not an address of this host; give one that it has. If NAT turns that address into "
          "one of this host, set local.listen to the latter, and local.transport_address to the "
          "address at which the other nodes reach this host without NAT"));
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("%s cannot be bound: %s", shown, std::strerror(errno)));
  }
}

// Returns sockets of `type` at all addresses of host:port.
absl::StatusOr<std::vector<int>> BindAll(const std::string& address, int type, int* port) {
  AGMM_ASSIGN_OR_RETURN(const HostPort parsed, ParseHostPort(address, 0));
  AGMM_ASSIGN_OR_RETURN(const std::vector<SocketAddress> all, Resolve(parsed.host, parsed.port));
  std::vector<int> sockets;
  absl::Cleanup close_all = [&sockets] {
    for (int fd : sockets) close(fd);
  };
  *port = 0;
  absl::Status missing;  // a family or an address that this host does not have
  for (SocketAddress where : all) {
    const bool ip6 = where.bytes.ss_family == AF_INET6;
    const int fd = socket(where.bytes.ss_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 && errno == EAFNOSUPPORT) {
      missing = Errno(absl::StrCat("no socket can be made for ", where.ip()));
      continue;
    }
    if (fd < 0) return Errno("no socket can be made");
    const int on = 1;
    // Not for datagrams, for which it would let two daemons share a port.
    if (type == SOCK_STREAM) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    // All addresses of a host use the same port.
    if (*port != 0) where.set_port(*port);
    // The unspecified address of IPv6 also covers IPv4.
    const int off = 0;
    if (ip6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(fd, where.get(), where.size) != 0 ||
        (type == SOCK_STREAM && listen(fd, kBacklog) != 0)) {
      const bool elsewhere = errno == EADDRNOTAVAIL;
      const absl::Status error = BindError(address, where);
      close(fd);
      if (!elsewhere) return error;
      missing = error;
      continue;
    }
    sockets.push_back(fd);
    getsockname(fd, where.get(), &where.size);
    *port = where.port();
  }
  // A name may also have addresses of other networks.
  if (sockets.empty()) return missing;
  std::move(close_all).Cancel();
  return sockets;
}

}  // namespace

absl::StatusOr<std::vector<int>> ListenTcp(const std::string& address, int* port) {
  return BindAll(address, SOCK_STREAM, port);
}

absl::StatusOr<std::vector<int>> BindUdp(const std::string& address) {
  int port;
  return BindAll(address, SOCK_DGRAM, &port);
}

std::vector<std::string> BoundIps(const std::vector<int>& sockets) {
  std::vector<SocketAddress> bound(sockets.size());
  for (size_t i = 0; i < sockets.size(); ++i)
    getsockname(sockets[i], bound[i].get(), &bound[i].size);
  return IpsOf(bound);
}

absl::StatusOr<int> ListenUnix(const std::string& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return Errno("no socket can be made");
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  std::strncpy(where.sun_path, path.c_str(), sizeof(where.sun_path) - 1);
  // The socket must never be open to other users, not even before a chmod.
  const mode_t mask = umask(0177);
  const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&where), sizeof(where)) == 0;
  umask(mask);
  if (bound && listen(fd, kBacklog) == 0) return fd;
  const absl::Status error = Errno(absl::StrCat("the socket ", path, " cannot be listened on"));
  close(fd);
  return error;
}

}  // namespace agmm
