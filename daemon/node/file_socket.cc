#include "daemon/rpc/file_socket.h"

#include <sys/epoll.h>
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
constexpr int kEvents = 16;  // at a time

// Who is at the other end, if it is ourselves or root.
std::optional<pid_t> TrustedPeer(int connection) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  if (getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return std::nullopt;
  if (peer.uid != geteuid() && peer.uid != 0) return std::nullopt;
  return peer.pid;
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
  // Of a client that has gone the end of its connection tells.
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
  const int events = epoll_create1(EPOLL_CLOEXEC);
  absl::Cleanup close_all = [&] {
    for (int fd : {listener, wake, events}) close(fd);
  };
  unlink(path.c_str());
  // Its owner's from its first moment.
  const mode_t mask = umask(0177);
  const bool bound = listener >= 0 && wake >= 0 && events >= 0 &&
                     bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  const int error = errno;
  umask(mask);
  if (!bound || listen(listener, kBacklog) != 0) {
    return absl::ErrnoToStatus(bound ? errno : error,
                               absl::StrFormat("%s cannot be listened on", path));
  }
  std::move(close_all).Cancel();
  std::unique_ptr<FileSocket> files(new FileSocket(path, listener, wake, events));
  if (!files->Watch(wake, EPOLLIN) || !files->Watch(listener, EPOLLIN))
    return absl::ErrnoToStatus(errno, absl::StrFormat("%s cannot be watched", path));
  files->thread_ = std::thread([raw = files.get()] { raw->Run(); });
  return files;
}

FileSocket::~FileSocket() {
  const uint64_t one = 1;
  while (write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  if (thread_.joinable()) thread_.join();
  for (auto& [token, offered] : offers_) CloseAll(&offered.fds);
  for (const auto& [connection, token] : tokens_) close(connection);
  for (int fd : {listener_, wake_, events_}) close(fd);
  unlink(path_.c_str());
}

void FileSocket::CloseAll(std::vector<int>* fds) {
  for (int fd : std::exchange(*fds, {})) close(fd);
}

bool FileSocket::Watch(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  return epoll_ctl(events_, EPOLL_CTL_ADD, fd, &event) == 0;
}

std::string FileSocket::Offer(std::vector<int> fds, std::function<void()> closed) {
  std::string token = RandomHex(kTokenBytes);
  std::lock_guard lock(mutex_);
  Offered& offered = offers_[token];
  offered.fds = std::move(fds);
  offered.closed = std::move(closed);
  return token;
}

std::optional<pid_t> FileSocket::Withdraw(const std::string& token) {
  Offered withdrawn;  // goes behind the lock
  std::lock_guard lock(mutex_);
  const auto it = offers_.find(token);
  // Fetched, and closed already.
  if (it == offers_.end()) return 0;
  if (it->second.connection >= 0) return it->second.pid;
  withdrawn = std::move(it->second);
  CloseAll(&withdrawn.fds);
  offers_.erase(it);
  return std::nullopt;
}

void FileSocket::Run() {
  while (true) {
    epoll_event happened[kEvents];
    const int count = epoll_wait(events_, happened, kEvents, resting_ ? kShortageMs : -1);
    if (count < 0 && errno != EINTR) return;
    if (resting_) resting_ = !Watch(listener_, EPOLLIN);
    for (int i = 0; i < count; ++i) {
      const int fd = happened[i].data.fd;
      if (fd == wake_) return;
      if (fd == listener_) {
        Accept();
      } else {
        End(fd);
      }
    }
  }
}

void FileSocket::Accept() {
  ++accepts_;
  const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  if (connection >= 0) {
    if (!Serve(connection)) close(connection);
    return;
  }
  // The client stays in the queue while descriptors or memory are short: no use to look at once.
  if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;
  resting_ = epoll_ctl(events_, EPOLL_CTL_DEL, listener_, nullptr) == 0;
}

bool FileSocket::Serve(int connection) {
  const std::optional<pid_t> peer = TrustedPeer(connection);
  if (!peer.has_value()) return false;
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  std::string token(2 * kTokenBytes, '\0');
  if (recv(connection, token.data(), token.size(), MSG_WAITALL) !=
      static_cast<ssize_t>(token.size())) {
    return false;
  }
  // Under the lock, so that Withdraw knows; one byte fits in any socket's buffer.
  std::lock_guard lock(mutex_);
  const auto offer = offers_.find(token);
  if (offer == offers_.end() || offer->second.connection >= 0) return false;
  // Its end must be seen, or nothing may be sent. What the client says besides does not matter.
  if (!Watch(connection, EPOLLRDHUP)) return false;
  tokens_[connection] = token;
  offer->second.connection = connection;
  offer->second.pid = *peer;
  SendFiles(connection, offer->second.fds);
  CloseAll(&offer->second.fds);
  return true;
}

void FileSocket::End(int connection) {
  Offered ended;
  {
    std::lock_guard lock(mutex_);
    const auto token = tokens_.find(connection);
    if (token == tokens_.end()) return;
    const auto offer = offers_.find(token->second);
    ended = std::move(offer->second);
    offers_.erase(offer);
    tokens_.erase(token);
  }
  close(connection);
  ended.closed();
}

}  // namespace agmm
