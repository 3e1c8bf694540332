#include "client/connect/mapped_files.h"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "kernels/base/deadline.h"

namespace agmm {
namespace {

constexpr absl::Duration kFetch = absl::Seconds(5);
constexpr int kMaxFiles = 64;

// The open connections of this process. A forked child closes its copies, because it would keep the
// memory of a killed parent reserved.
class Connections {
 public:
  static Connections& Get() {
    static Connections* const connections = [] {
      auto* const made = new Connections;
      pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                     [] { Get().OnForked(); });
      return made;
    }();
    return *connections;
  }

  // Returns a socket, or -1 and sets errno.
  int Open() {
    std::lock_guard lock(mutex_);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) open_.insert(fd);
    return fd;
  }
  void Close(int fd) {
    std::lock_guard lock(mutex_);
    // In a forked child, the number may belong to another file.
    if (open_.erase(fd) == 0) return;
    // Ends the connection at once, even if another process has a copy of it.
    shutdown(fd, SHUT_RDWR);
    close(fd);
  }

 private:
  void OnForked() {
    for (int fd : open_) close(fd);
    open_.clear();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<int> open_;  // with mutex_
};

absl::Status NoFiles(const std::string& socket, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrFormat("the files of the mapping cannot be fetched at %s: %s", socket, why));
}

}  // namespace

absl::StatusOr<std::vector<int>> MappedFiles::Fetch(const v1::MapTensorResponse& response,
                                                    Deadline deadline) {
  const std::string& path = response.file_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return NoFiles(path, "its path is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = connection_ = Connections::Get().Open();
  if (fd < 0) return NoFiles(path, std::strerror(errno));
  absl::Cleanup release = [this] { Release(); };
  const absl::Duration left = std::clamp(deadline.Left(), absl::Milliseconds(1), kFetch);
  const timeval patience = absl::ToTimeval(left);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      send(fd, response.token().data(), response.token().size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(response.token().size())) {
    return NoFiles(path, std::strerror(errno));
  }
  char byte;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFiles * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return NoFiles(path, std::strerror(errno));
  if (got == 0) return NoFiles(path, "the daemon does not know the token, or not this user");
  std::vector<int> files;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    files.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(files.data(), CMSG_DATA(header), files.size() * sizeof(int));
  }
  std::move(release).Cancel();
  return files;
}

void MappedFiles::Release() {
  if (const int connection = std::exchange(connection_, -1); connection >= 0)
    Connections::Get().Close(connection);
}

}  // namespace agmm
