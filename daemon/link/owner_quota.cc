#include "daemon/link/owner_quota.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// "ipv4:10.0.0.1:4321" and "ipv6:[::1]:4321".
bool IsHost(const std::string& principal) { return absl::StartsWith(principal, "ipv"); }

}  // namespace

std::string OwnerOf(const std::string& principal) {
  return IsHost(principal) ? principal.substr(0, principal.rfind(':')) : principal;
}

OwnerQuota::Bounds OwnerQuota::Quarters(int64_t all) {
  const int64_t quarter = std::max<int64_t>(all / 4, 1);
  return {all, std::max(all - quarter, quarter), quarter};
}

OwnerQuota::OwnerQuota(Words words, Bounds bounds) : words_(std::move(words)), bounds_(bounds) {}

absl::Status OwnerQuota::Full(int64_t taken, int64_t bound, const std::string& of,
                              const std::string& whose) const {
  const auto text = [this](int64_t count) {
    return words_.bytes ? FormatBytes(count) : absl::StrCat(count);
  };
  return WithReason(
      absl::ResourceExhaustedError(absl::StrFormat(
          "%s %s%s%s %s, and %s is the limit%s; %s", text(taken), words_.bytes ? "of " : "",
          words_.things, of, words_.are, text(bound), whose, words_.next)),
      kReasonQuotaFull);
}

absl::Status OwnerQuota::CheckOwner(const std::string& owner, int64_t count) const {
  const auto it = owners_.find(owner);
  const int64_t own = it == owners_.end() ? 0 : it->second;
  if (own + count > bounds_.owner)
    return Full(own, bounds_.owner, absl::StrCat(" of ", owner), " for one owner");
  if (IsHost(owner) && hosts_ + count > bounds_.hosts)
    return Full(hosts_, bounds_.hosts, " of other hosts", " for all of them together");
  return all_ + count > bounds_.all ? Full(all_, bounds_.all, "", "") : absl::OkStatus();
}

absl::Status OwnerQuota::Check(const std::string& principal, int64_t count) const {
  std::lock_guard lock(mutex_);
  return CheckOwner(OwnerOf(principal), count);
}

absl::Status OwnerQuota::Take(const std::string& principal, int64_t count) {
  const std::string owner = OwnerOf(principal);
  std::lock_guard lock(mutex_);
  AGMM_RETURN_IF_ERROR(CheckOwner(owner, count));
  owners_[owner] += count;
  all_ += count;
  if (IsHost(owner)) hosts_ += count;
  return absl::OkStatus();
}

void OwnerQuota::Return(const std::string& principal, int64_t count) {
  std::lock_guard lock(mutex_);
  const auto it = owners_.find(OwnerOf(principal));
  if ((it->second -= count) == 0) owners_.erase(it);
  all_ -= count;
  if (IsHost(principal)) hosts_ -= count;
}

int64_t OwnerQuota::taken() const {
  std::lock_guard lock(mutex_);
  return all_;
}

}  // namespace agmm
