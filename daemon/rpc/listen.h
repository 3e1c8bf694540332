// The sockets that a daemon listens on.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace agmm {

// Makes the folder of the socket's path (mode 0700) if it is missing, but not that folder's parent.
absl::Status MakeSocketFolder(const std::string& socket);

// A unix socket's path, held for one process by a lock file beside it. The kernel releases it with
// the process.
class SocketLock {
 public:
  // Makes a missing folder and removes the socket of a dead process. Waits up to
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

// Sockets that listen at all addresses of host:port; the caller closes them. `*port` becomes the
// port, which the kernel chooses if `address` says 0. Errors: ALREADY_EXISTS when it is in use;
// INVALID_ARGUMENT for a host that is not an address of this machine; RESOURCE_EXHAUSTED.
absl::StatusOr<std::vector<int>> ListenTcp(const std::string& address, int* port);
// Likewise for datagrams; `address` has a port.
absl::StatusOr<std::vector<int>> BindUdp(const std::string& address);
// The IP addresses of sockets that one of the two has made.
std::vector<std::string> BoundIps(const std::vector<int>& sockets);
// One that listens at `path`, for this user (and root) alone. The caller holds its SocketLock.
absl::StatusOr<int> ListenUnix(const std::string& path);

}  // namespace agmm
