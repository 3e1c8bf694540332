// Hands file descriptors to clients of this host: a unix socket beside the daemon's own, where a token that
// was given out over gRPC fetches what it stands for, once.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"

namespace agmm {

// Thread-safe.
class FileSocket {
 public:
  // Listens at `path` with mode 0600. The caller holds the lock of the daemon's own socket: what is at
  // `path` is a dead daemon's. Errors: INVALID_ARGUMENT for a path that is too long; the system's.
  static absl::StatusOr<std::unique_ptr<FileSocket>> Start(const std::string& path);
  ~FileSocket();
  FileSocket(const FileSocket&) = delete;

  const std::string& path() const { return path_; }

  // A new token for `fds`, which stay open until it is fetched or withdrawn; the caller's to close. At most
  // kMaxFiles.
  std::string Offer(std::vector<int> fds);
  // The token means nothing any more, and its descriptors are not being sent.
  void Withdraw(const std::string& token);

  static constexpr size_t kMaxFiles = 64;

 private:
  FileSocket(std::string path, int listener, int wake)
      : path_(std::move(path)), listener_(listener), wake_(wake) {}
  void Run();
  void Serve(int connection);

  const std::string path_;
  const int listener_, wake_;
  std::mutex mutex_;
  std::map<std::string, std::vector<int>> offers_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace agmm
