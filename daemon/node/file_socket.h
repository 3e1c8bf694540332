// Hands file descriptors to clients of this host: a unix socket beside the daemon's own, where a
// token that was given out over gRPC fetches what it stands for, once. The connection that fetched
// them stays open for as long as the client may have them mapped: it ends when the client says so,
// and with its process.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"

namespace agmm {

// Thread-safe.
class FileSocket {
 public:
  // Listens at `path` with mode 0600. The caller holds the lock of the daemon's own socket: what is
  // at `path` is a dead daemon's. Errors: INVALID_ARGUMENT for a path that is too long; the
  // system's.
  static absl::StatusOr<std::unique_ptr<FileSocket>> Start(const std::string& path);
  // Of what is open nobody is told any more.
  ~FileSocket();
  FileSocket(const FileSocket&) = delete;

  const std::string& path() const { return path_; }

  // A new token for `fds`, which are closed once they have been fetched or withdrawn; at most
  // kMaxFiles. `closed` runs once, on a thread of this object, when the connection that fetched
  // them has ended.
  std::string Offer(std::vector<int> fds, std::function<void()> closed);
  // The token means nothing any more. Nothing if nobody has fetched it: then `closed` never runs.
  // Else who has: the pid, 0 where it is not known.
  std::optional<pid_t> Withdraw(const std::string& token);

  // How often it has asked the kernel for a connection.
  int64_t accepts() const { return accepts_.load(); }

  static constexpr size_t kMaxFiles = 64;
  static constexpr int kShortageMs = 100;  // between two looks while there are no descriptors

 private:
  struct Offered {
    std::vector<int> fds;
    std::function<void()> closed;
    int connection = -1;  // that has fetched it
    pid_t pid = 0;
  };
  FileSocket(std::string path, int listener, int wake, int events)
      : path_(std::move(path)), listener_(listener), wake_(wake), events_(events) {}
  void Run();
  void Accept();
  // True if the connection has fetched something and stays open.
  bool Serve(int connection);
  void End(int connection);
  bool Watch(int fd, uint32_t events);
  static void CloseAll(std::vector<int>* fds);

  const std::string path_;
  const int listener_, wake_, events_;
  std::atomic<int64_t> accepts_{0};
  bool resting_ = false;  // the thread's: the listener is not watched
  std::mutex mutex_;
  std::map<std::string, Offered> offers_ ABSL_GUARDED_BY(mutex_);  // also those that were fetched
  std::map<int, std::string> tokens_ ABSL_GUARDED_BY(mutex_);      // of the open connections
  std::thread thread_;
};

}  // namespace agmm
