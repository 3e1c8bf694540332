#include "daemon/node/file_socket.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "kernels/base/thread.h"

namespace agmm {
namespace {

constexpr size_t kTokenBytes = 16;
constexpr size_t kTokenDigits = 2 * kTokenBytes;
// Bound on the time from a client's connection to the last byte of its token.
constexpr absl::Duration kTokenLimit = absl::Seconds(2);
constexpr int kBacklog = 64;

// Returns the client's pid, if it runs as this daemon's user or as root.
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
  // A lost client is noticed by the end of its connection.
  while (sendmsg(connection, &message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<FileSocket>> FileSocket::Start(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the socket path \"%s\" has %d characters; at most %d are allowed", path,
                        path.size(), sizeof(address.sun_path) - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int wake = eventfd(0, EFD_CLOEXEC);
  absl::Cleanup close_all = [&] {
    for (int fd : {listener, wake}) close(fd);
  };
  struct stat old;
  if (lstat(path.c_str(), &old) == 0) {
    if (!S_ISSOCK(old.st_mode)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s exists and is not a socket; move it away, or give the daemon another socket", path));
    }
    unlink(path.c_str());
  }
  // Created without access for others, not restricted afterwards.
  const mode_t mask = umask(0177);
  const bool bound = listener >= 0 && wake >= 0 &&
                     bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  const int error = errno;
  umask(mask);
  if (!bound || listen(listener, kBacklog) != 0) {
    return absl::ErrnoToStatus(bound ? errno : error, absl::StrCat("cannot listen on ", path));
  }
  std::move(close_all).Cancel();
  std::unique_ptr<FileSocket> files(new FileSocket(path, listener, wake));
  AGMM_ASSIGN_OR_RETURN(files->thread_,
                        StartThread("the file socket", [raw = files.get()] { raw->Run(); }));
  return files;
}

FileSocket::~FileSocket() {
  const uint64_t one = 1;
  while (write(wake_, &one, sizeof(one)) < 0 && errno == EINTR) {
  }
  if (thread_.joinable()) thread_.join();
  for (auto& [token, offered] : offers_) CloseAll(&offered.fds);
  for (const auto& [connection, token] : tokens_) close(connection);
  for (const PendingClient& client : pending_) close(client.connection);
  for (int fd : {listener_, wake_}) close(fd);
  unlink(path_.c_str());
}

void FileSocket::CloseAll(std::vector<int>* fds) {
  for (int fd : std::exchange(*fds, {})) close(fd);
}

std::string FileSocket::Offer(std::vector<int> fds, std::function<void()> closed,
                              std::function<void(int64_t)> sent) {
  std::string token = RandomHex(kTokenBytes);
  std::lock_guard lock(mutex_);
  Offered& offered = offers_[token];
  offered.fds = std::move(fds);
  offered.closed = std::move(closed);
  offered.sent = std::move(sent);
  return token;
}

std::optional<pid_t> FileSocket::Withdraw(const std::string& token) {
  Offered withdrawn;  // destroyed after the lock
  std::lock_guard lock(mutex_);
  const auto it = offers_.find(token);
  // The files were fetched, and the connection has ended since.
  if (it == offers_.end()) return 0;
  if (it->second.connection >= 0) return it->second.pid;
  withdrawn = std::move(it->second);
  CloseAll(&withdrawn.fds);
  offers_.erase(it);
  return std::nullopt;
}

void FileSocket::Run() {
  bool resting = false;  // descriptors are short, so the listener is not watched
  while (true) {
    std::vector<pollfd> fds = {{wake_, POLLIN, 0}};
    for (const auto& [connection, token] : tokens_) fds.push_back({connection, POLLIN, 0});
    for (const PendingClient& client : pending_) fds.push_back({client.connection, POLLIN, 0});
    // The listener comes last, because a descriptor that it returns may have belonged to another
    // connection in this round.
    if (!resting) fds.push_back({listener_, POLLIN, 0});
    const int count = poll(fds.data(), fds.size(), resting ? kShortageMs : PendingLimitMs());
    if (count < 0 && errno != EINTR) return;
    resting = false;
    for (const pollfd& happened : fds) {
      if (count < 0 || happened.revents == 0) continue;
      if (happened.fd == wake_) return;
      if (happened.fd == listener_) {
        resting = !Accept();
      } else if (tokens_.contains(happened.fd)) {
        ReadMore(happened.fd);
      } else {
        ReadToken(std::find_if(pending_.begin(), pending_.end(), [&](const PendingClient& client) {
          return client.connection == happened.fd;
        }));
      }
    }
    while (!pending_.empty() && pending_.front().deadline.HasPassed()) DropOldest();
  }
}

int FileSocket::PendingLimitMs() const {
  if (pending_.empty()) return -1;
  const int64_t left_ms = absl::ToInt64Milliseconds(pending_.front().deadline.Left());
  // Rounds up, because a fraction of a millisecond must not become a busy wait.
  return static_cast<int>(std::max<int64_t>(left_ms, 0)) + 1;
}

void FileSocket::DropOldest() {
  close(pending_.front().connection);
  pending_.pop_front();
}

bool FileSocket::Accept() {
  ++accepts_;
  const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (connection < 0)
    return errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM;
  const std::optional<pid_t> peer = TrustedPeer(connection);
  if (!peer.has_value()) {
    close(connection);
    return true;
  }
  pending_.push_back({connection, *peer, Deadline::After(kTokenLimit)});
  // A client sends its token at once, so most are served here.
  ReadToken(std::prev(pending_.end()));
  if (pending_.size() > kMaxPending) DropOldest();
  return true;
}

void FileSocket::ReadToken(std::deque<PendingClient>::iterator client) {
  char digits[kTokenDigits];
  const ssize_t got =
      recv(client->connection, digits, kTokenDigits - client->token.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0) client->token.append(digits, got);
  if (got > 0 && client->token.size() < kTokenDigits) return;
  const PendingClient over = std::move(*client);
  pending_.erase(client);
  if (got <= 0 || !Serve(over)) close(over.connection);
}

bool FileSocket::Serve(const PendingClient& client) {
  // Sent with the lock held, so that Withdraw sees the fetch; one byte fits into any socket's
  // buffer.
  std::lock_guard lock(mutex_);
  const auto offer = offers_.find(client.token);
  if (offer == offers_.end() || offer->second.connection >= 0) return false;
  tokens_[client.connection] = client.token;
  offer->second.connection = client.connection;
  offer->second.pid = client.pid;
  SendFiles(client.connection, offer->second.fds);
  CloseAll(&offer->second.fds);
  return true;
}

void FileSocket::ReadMore(int connection) {
  char bytes[256];
  const ssize_t got = recv(connection, bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) return End(connection);
  std::unique_lock lock(mutex_);
  const std::function<void(int64_t)> sent = offers_.at(tokens_.at(connection)).sent;
  lock.unlock();
  sent(got);
}

void FileSocket::End(int connection) {
  const std::string token = tokens_.extract(connection).mapped();
  std::unique_lock lock(mutex_);
  const std::function<void()> closed = std::move(offers_.extract(token).mapped().closed);
  lock.unlock();
  close(connection);
  closed();
}

}  // namespace agmm
