// Bounds on the resources that clients hold here: in total, for all hosts together, and for each
// owner, so that no client shuts out the others, or the users of the local socket.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"

namespace agmm {

// Returns the principal without the port of a peer's address: all connections of a host are one
// owner.
std::string OwnerOf(const std::string& principal);

// Thread-safe.
class OwnerQuota {
 public:
  struct Bounds {
    int64_t all = 0;
    int64_t hosts = 0;  // of owners that are hosts, together
    int64_t owner = 0;
  };
  // Returns three quarters of `all` for the hosts and a quarter for each owner, at least one.
  static Bounds Quarters(int64_t all);

  // The parts of an error: "4 sessions", "are open at this daemon", and as the next action "close
  // some".
  struct Words {
    std::string things, are, next;
    bool bytes = false;  // bytes are counted, not things
  };
  OwnerQuota(Words words, Bounds bounds);

  // Errors: RESOURCE_EXHAUSTED if `count` more would exceed a bound.
  absl::Status Check(const std::string& principal, int64_t count = 1) const;
  // Counts `count` more. Errors: those of Check; then nothing changes.
  absl::Status Take(const std::string& principal, int64_t count = 1);
  // Undoes a Take of the same owner.
  void Return(const std::string& principal, int64_t count = 1);
  int64_t taken() const;

 private:
  // With the lock.
  absl::Status CheckOwner(const std::string& owner, int64_t count) const;
  absl::Status Full(int64_t taken, int64_t bound, const std::string& of,
                    const std::string& whose) const;

  const Words words_;
  const Bounds bounds_;
  mutable std::mutex mutex_;  // guards all below
  int64_t all_ = 0, hosts_ = 0;
  std::map<std::string, int64_t> owners_;  // has no entries of 0
};

}  // namespace agmm
