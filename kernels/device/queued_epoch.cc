#include "kernels/device/queued_epoch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"

namespace agmm {

absl::Status QueuedEpoch::NotPrepared() const {
  return absl::FailedPreconditionError(
      absl::StrFormat("rank %d runs a plan that is not prepared", rank));
}

bool QueuedEpoch::IsLate(int64_t now_ns, Deadline* next) const {
  if (deadline.HasPassed(now_ns)) return true;
  *next = std::min(*next, deadline);
  return false;
}

std::string QueuedEpoch::NotBegun() const {
  return absl::StrFormat(
      "rank %d had not begun after %.1f s behind other epochs of its device, epoch %d", rank,
      (MonotonicNanos() - queued_ns) * 1e-9, epoch);
}

absl::Status CanceledAt(const absl::Status& reason, const std::string& stall) {
  return WithMessage(reason, absl::StrCat(reason.message(), ": ", stall));
}

EpochReport ReportNotBegun(const absl::Status& failure) {
  EpochReport report;
  report.status = failure;
  report.end_ns = MonotonicNanos();
  return report;
}

}  // namespace agmm
