#include "daemon/rpc/file_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "kernels/base/random.h"

namespace agmm {
namespace {

constexpr size_t kTokenBytes = 16;  // twice as many hex digits
// Clients are served one after the other; one that does not speak holds the others up for so long.
constexpr timeval kPatience = {0, 500'000};
constexpr int kBacklog = 64;
constexpr int kShortageMs = 100;  // between two looks

// Ourselves, or root.
bool IsTrusted(int connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return false;
  return peer.uid == geteuid() || peer.uid == 0;
}

void SendFiles(int connection, const std::vector<int>& fds) {
  char byte = 0;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(FileSocket::kMaxFiles * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  // A client that has gone has its stream ended, too: nothing to do about it here.
  while (sendmsg(connection, &message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileSocket>> FileSocket::Start(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the socket path \"%s\" has %d characters; %d are the bound", path,
                        path.size(), sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int wake = eventfd(0, EFD_CLOEXEC);
  absl::Cleanup close_both = [&] {
    close(listener);
    close(wake);
  };
  unlink(path.c_str());
  // Its owner's from its first moment.
  const mode_t mask = umask(0177);
  const bool bound = listener >= 0 && wake >= 0 &&
                     bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  const int error = errno;
  umask(mask);
  if (!bound || listen(listener, kBacklog) != 0) {
    return absl::ErrnoToStatus(bound ? errno : error,
                               absl::StrFormat("%s cannot be listened on", path));
  }
  std::move(close_both).Cancel();
  std::unique_ptr<FileSocket> files(new FileSocket(path, listener, wake));
  files->thread_ = std::thread([raw = files.get()] { raw->Run(); });
  return files;
}

FileSocket::~FileSocket() {
  const uint64_t one = 1;
  while (write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  thread_.join();
  close(listener_);
  close(wake_);
  unlink(path_.c_str());
}

std::string FileSocket::Offer(std::vector<int> fds) {
  std::string token = RandomHex(kTokenBytes);
  std::lock_guard lock(mutex_);
  offers_[token] = std::move(fds);
  return token;
}

void FileSocket::Withdraw(const std::string& token) {
  std::lock_guard lock(mutex_);
  offers_.erase(token);
}

void FileSocket::Run() {
  while (true) {
    pollfd watched[] = {{wake_, POLLIN, 0}, {listener_, POLLIN, 0}};
    if (poll(watched, 2, -1) < 0 && errno != EINTR) return;
    if (watched[0].revents != 0) return;
    if (watched[1].revents == 0) continue;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) {
      // The client stays in the queue while descriptors or memory are short: no use to look at once.
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
        poll(watched, 1, kShortageMs);
      continue;
    }
    if (IsTrusted(connection)) Serve(connection);
    close(connection);
  }
}

void FileSocket::Serve(int connection) {
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  std::string token(2 * kTokenBytes, '\0');
  if (recv(connection, token.data(), token.size(), MSG_WAITALL) !=
      static_cast<ssize_t>(token.size())) {
    return;
  }
  // Under the lock, so that Withdraw may close them; one byte fits in any socket's buffer.
  std::lock_guard lock(mutex_);
  const auto offer = offers_.find(token);
  if (offer == offers_.end()) return;
  SendFiles(connection, offer->second);
  offers_.erase(offer);
}

}  // namespace agmm
