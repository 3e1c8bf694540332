// The places where a daemon listens, checked before gRPC takes them: so that what is wrong can be
// said.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace agmm {

// A unix socket's path, held for one process by a lock file beside it. The kernel gives it back
// with the process, however that ends.
class SocketLock {
 public:
  // Makes the directory (mode 0700) if there is none; removes the socket of a dead process. A
  // process that was killed may hold it a moment longer: waits for `patience` at most, after
  // calling `waiting` once. Errors: ALREADY_EXISTS when a live process has it, naming its pid.
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

// The numeric address of `host`. Errors: INVALID_ARGUMENT for a name that nobody knows.
absl::StatusOr<std::string> ResolveHost(const std::string& host);

// Whether host:port can be bound. Errors: ALREADY_EXISTS when it is in use; INVALID_ARGUMENT for a
// host that this machine does not have.
absl::Status CheckTcpAddress(const std::string& address);

}  // namespace agmm
