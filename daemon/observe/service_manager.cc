#include "daemon/observe/service_manager.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"

namespace agmm {

// Sends one datagram, as the manual of sd_notify shows, so that agmmd does not need libsystemd.
absl::Status NotifyServiceManager(absl::string_view state) {
  const char* const name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr || *name == '\0') return absl::OkStatus();
  const absl::string_view path(name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // '@' stands for the zero byte of an abstract socket's name.
  if ((path[0] != '/' && path[0] != '@') || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "NOTIFY_SOCKET=%s is not a path or an abstract name of at most %d characters", path,
        sizeof(address.sun_path) - 1));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  // Without the terminating zero byte, because it would become part of an abstract name.
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (fd < 0 || sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                       reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    return absl::ErrnoToStatus(errno,
                               absl::StrFormat("nothing can be sent to NOTIFY_SOCKET=%s", path));
  }
  return absl::OkStatus();
}

}  // namespace agmm
