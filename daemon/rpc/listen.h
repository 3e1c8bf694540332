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

// A unix socket's path, reserved for one process by a lock file next to it. The destructor removes
// the file; if the process is killed, the kernel releases the lock.
class SocketLock {
 public:
  // Makes a missing folder and removes the socket of a dead process. Waits up to `patience` for a
  // killed process to release it, after calling `waiting` once. Errors: ALREADY_EXISTS with the
  // pid, if a live process has it.
  static absl::StatusOr<std::unique_ptr<SocketLock>> Take(
      const std::string& path, absl::Duration patience,
      const std::function<void(const absl::Status& in_use)>& waiting);
  ~SocketLock();
  SocketLock(const SocketLock&) = delete;

 private:
  static absl::StatusOr<std::unique_ptr<SocketLock>> TakeNow(const std::string& path);
  explicit SocketLock(int fd) : fd_(fd) {}
  const int fd_;
  std::string path_;  // of the lock file; empty until it is locked
};

// Returns sockets that listen at all addresses of host:port; the caller closes them. `*port`
// becomes the port, which the kernel chooses if `address` says 0. Errors: ALREADY_EXISTS when it is
// in use; INVALID_ARGUMENT for a host that is not an address of this machine; RESOURCE_EXHAUSTED.
absl::StatusOr<std::vector<int>> ListenTcp(const std::string& address, int* port);
// Like ListenTcp, for datagrams; `address` must have a port.
absl::StatusOr<std::vector<int>> BindUdp(const std::string& address);
// Returns the IP addresses of sockets from ListenTcp or BindUdp.
std::vector<std::string> BoundIps(const std::vector<int>& sockets);
// Returns a socket that listens at `path`, for this user and root only. The caller must hold its
// SocketLock.
absl::StatusOr<int> ListenUnix(const std::string& path);

}  // namespace agmm
