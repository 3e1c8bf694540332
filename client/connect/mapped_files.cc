#include "client/mapped_files.h"

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

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace agmm {
namespace {

constexpr absl::Duration kFetch = absl::Seconds(5);
constexpr int kMaxFiles = 64;

// The open connections of this process. A forked child closes its copies: one that lived on would
// keep the memory of a parent that was killed.
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

  // A socket, or -1 and errno.
  int Open() {
    std::lock_guard lock(mutex_);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) open_.insert(fd);
    return fd;
  }
  void Close(int fd) {
    std::lock_guard lock(mutex_);
    // A child's number of it may be another's.
    if (open_.erase(fd) == 0) return;
    // Seen at once, whoever else still has a copy.
    shutdown(fd, SHUT_RDWR);
    close(fd);
  }

 private:
  void OnForked() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (int fd : open_) close(fd);
    open_.clear();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<int> open_ ABSL_GUARDED_BY(mutex_);
};

absl::Status NoFiles(const std::string& socket, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrFormat("the files of the mapping cannot be fetched at %s: %s", socket, why));
}

}  // namespace

absl::Status MappedFiles::Fetch(const v1::MapTensorResponse& response, absl::Time deadline) {
  const std::string& path = response.file_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return NoFiles(path, "its path is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = connection_ = Connections::Get().Open();
  if (fd < 0) return NoFiles(path, std::strerror(errno));
  absl::Cleanup let_go = [this] { LetGo(); };
  const absl::Duration left = std::clamp(deadline - absl::Now(), absl::Milliseconds(1), kFetch);
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
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    files_.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(files_.data(), CMSG_DATA(header), files_.size() * sizeof(int));
  }
  std::move(let_go).Cancel();
  return absl::OkStatus();
}

void MappedFiles::CloseFiles() {
  for (int fd : std::exchange(files_, {})) close(fd);
}

void MappedFiles::LetGo() {
  CloseFiles();
  if (const int connection = std::exchange(connection_, -1); connection >= 0)
    Connections::Get().Close(connection);
}

}  // namespace agmm
