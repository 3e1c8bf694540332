// An epoch in the queue of a device, and what the queues of all kinds of device do alike.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "kernels/base/deadline.h"
#include "kernels/device/executor.h"

namespace agmm {

struct QueuedEpoch {
  uint64_t epoch = 0;
  Operands operands;
  Deadline deadline;
  Executor::DoneCallback done;
  int rank = 0;  // its number in the world, for errors
  int64_t queued_ns = 0;

  // FAILED_PRECONDITION: "rank 3 runs a plan that is not prepared".
  absl::Status NotPrepared() const;
  // Returns true if the deadline has passed. Otherwise lowers `next` to it.
  bool IsLate(int64_t now_ns, Deadline* next) const;
  // "rank 3 had not begun after 5.0 s behind other epochs of its device, epoch 17".
  std::string NotBegun() const;
};

// The reason of an epoch that is canceled while it is in progress, with the step that holds it up.
absl::Status CanceledAt(const absl::Status& reason, const std::string& stall);
// The report of an epoch that fails before it begins.
EpochReport ReportNotBegun(const absl::Status& failure);

// Calls `visit` with each launch, in order, and with whether it is the first one of its target.
// Only that one can be late or over, because the epochs of an executor end in order. Stops when
// `visit` returns false.
template <typename Launches, typename Visit>
void VisitLaunches(Launches& launches, Visit visit) {
  std::set<decltype(launches.front().target)> seen;
  for (auto launch = launches.begin(); launch != launches.end(); ++launch)
    if (!visit(launch, seen.insert(launch->target).second)) return;
}

}  // namespace agmm
