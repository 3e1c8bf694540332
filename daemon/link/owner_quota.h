// Bounds on what clients hold open at this daemon: in all, and for each owner, so that one of them
// leaves room for the others.
#pragma once

#include <map>
#include <mutex>
#include <string>

#include "absl/status/status.h"

namespace agmm {

// The principal, without the port of a peer's address: all connections of a host are one owner.
std::string OwnerOf(const std::string& principal);

// Thread-safe.
class OwnerQuota {
 public:
  struct Bounds {
    int all = 0;
    int owner = 0;
  };
  // A quarter of `all` for each owner, at least one.
  static Bounds Quarters(int all) { return {all, all < 4 ? 1 : all / 4}; }

  // `things` names what is counted in errors, and `next` what a client can do: "sessions", "close
  // some".
  OwnerQuota(std::string things, std::string next, Bounds bounds);

  // Counts one more. Errors: RESOURCE_EXHAUSTED, without an effect.
  absl::Status Take(const std::string& principal);
  // Requires a Take of the same owner.
  void Return(const std::string& principal);

 private:
  const std::string things_, next_;
  const Bounds bounds_;
  std::mutex mutex_;  // of all below
  int all_ = 0;
  std::map<std::string, int> owners_;  // what each holds, if anything
};

}  // namespace agmm
