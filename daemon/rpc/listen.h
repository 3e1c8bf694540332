// Checks the addresses of a daemon before gRPC binds them, because gRPC does not report why it
// cannot.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace agmm {

// A unix socket's path, held for one process by a lock file beside it. The kernel releases it with
// the process.
class SocketLock {
 public:
  // Makes a missing directory (mode 0700) and removes the socket of a dead process. Waits up to
  // `patience` for a process that was killed to release it, after calling `waiting` once. Errors:
  // ALREADY_EXISTS when a live process has it, naming its pid.
  static absl::StatusOr<std::unique_ptr<SocketLock>> Take(
      const std::string& path, absl::Duration patience,
      const std::function<void(const absl::Status& in_use)>& waiting);
  ~SocketLock();
  SocketLock(const SocketLock&) = delete;

 private:
  static absl::StatusOr<std::unique_ptr<SocketLock>> TakeNow(const std::string& path);
  explicit SocketLock(int fd) : fd_(fd) {}
  const int fd_;
};

// Returns the numeric address of `host`. Errors: INVALID_ARGUMENT for an unknown name.
absl::StatusOr<std::string> ResolveHost(const std::string& host);

// Checks that host:port can be bound. Errors: ALREADY_EXISTS when it is in use; INVALID_ARGUMENT
// for a host that is not an address of this machine.
absl::Status CheckTcpAddress(const std::string& address);

}  // namespace agmm
