// Hands file descriptors to clients of this host, over a unix socket next to the daemon's own: a
// token that was sent over gRPC fetches them, once. The connection that fetched them is open as
// long as the client may have them mapped: it ends when the client closes it, or with the client's
// process.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/deadline.h"

namespace agmm {

// Thread-safe.
class FileSocket {
 public:
  // Listens at `path` with mode 0600. Requires the lock of the daemon's own socket, so that a file
  // at `path` belongs to a dead daemon and can be removed. Errors: INVALID_ARGUMENT for a path that
  // is too long; the system's.
  static absl::StatusOr<std::unique_ptr<FileSocket>> Start(const std::string& path);
  // Closes all connections without calling their `closed`.
  ~FileSocket();
  FileSocket(const FileSocket&) = delete;

  const std::string& path() const { return path_; }

  // Returns a new token for `fds`, at most kMaxFiles, which are closed once they have been fetched
  // or withdrawn. On a thread of this object, `sent` runs with the number of bytes that the client
  // sent after its token, before `closed`, which runs once: when the connection that fetched them
  // has ended.
  std::string Offer(
      std::vector<int> fds, std::function<void()> closed,
      std::function<void(int64_t)> sent = [](int64_t) {});
  // Voids the token. Returns nothing if its files were not fetched; `closed` then never runs.
  // Otherwise returns the pid of the client that fetched them, 0 if it is unknown.
  std::optional<pid_t> Withdraw(const std::string& token);

  // The number of calls of accept so far.
  int64_t accepts() const { return accepts_.load(); }

  static constexpr size_t kMaxFiles = 64;
  static constexpr int kShortageMs = 100;  // pause while descriptors are short
  // Bound on clients that have not sent their whole token. Each has two seconds; one client more
  // closes the oldest.
  static constexpr size_t kMaxPending = 64;

 private:
  struct Offered {
    std::vector<int> fds;
    std::function<void()> closed;
    std::function<void(int64_t)> sent;
    int connection = -1;  // the one that fetched the files; -1: none
    pid_t pid = 0;
  };
  // A client that has not sent its whole token.
  struct PendingClient {
    int connection = -1;
    pid_t pid = 0;
    Deadline deadline;
    std::string token = "";
  };
  FileSocket(std::string path, int listener, int wake)
      : path_(std::move(path)), listener_(listener), wake_(wake) {}
  void Run();
  // False while descriptors or memory are short.
  bool Accept();
  // The client is no longer pending once it has sent its whole token.
  void ReadToken(std::deque<PendingClient>::iterator client);
  // True if the connection fetched files and stays open.
  bool Serve(const PendingClient& client);
  void DropOldest();
  // Returns the time until the oldest pending client's deadline; -1 if none is pending.
  int PendingLimitMs() const;
  // Reads what the client sent. Ends the connection if the client has.
  void ReadMore(int connection);
  void End(int connection);
  static void CloseAll(std::vector<int>* fds);

  const std::string path_;
  const int listener_, wake_;
  std::atomic<int64_t> accepts_{0};
  std::mutex mutex_;
  std::map<std::string, Offered> offers_;  // including fetched ones; guarded by mutex_
  std::map<int, std::string> tokens_;      // of the connections that fetched; used on the thread
  std::deque<PendingClient> pending_;      // in the order of arrival; used on the thread
  std::thread thread_;
};

}  // namespace agmm
