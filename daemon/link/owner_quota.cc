#include "daemon/link/owner_quota.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"

namespace agmm {

std::string OwnerOf(const std::string& principal) {
  // "ipv4:10.0.0.1:4321" and "ipv6:[::1]:4321".
  return absl::StartsWith(principal, "ipv") ? principal.substr(0, principal.rfind(':')) : principal;
}

OwnerQuota::OwnerQuota(std::string things, std::string next, Bounds bounds)
    : things_(std::move(things)), next_(std::move(next)), bounds_(bounds) {}

absl::Status OwnerQuota::Take(const std::string& principal) {
  const std::string owner = OwnerOf(principal);
  std::lock_guard lock(mutex_);
  if (all_ >= bounds_.all) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d %s are open at this daemon, and %d is the limit; %s", all_, things_,
                        bounds_.all, next_));
  }
  const auto it = owners_.find(owner);
  if (it != owners_.end() && it->second >= bounds_.owner) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d %s of %s are open at this daemon, and %d is the limit for one owner; %s", it->second,
        things_, owner, bounds_.owner, next_));
  }
  ++owners_[owner];
  ++all_;
  return absl::OkStatus();
}

void OwnerQuota::Return(const std::string& principal) {
  std::lock_guard lock(mutex_);
  const auto it = owners_.find(OwnerOf(principal));
  if (--it->second == 0) owners_.erase(it);
  --all_;
}

}  // namespace agmm
