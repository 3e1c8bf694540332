// Launches on this node: feeds their epochs to the devices, and reports their ends.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "daemon/node/call_queue.h"
#include "daemon/node/local_plan.h"
#include "kernels/base/deadline.h"
#include "kernels/device/executor.h"

namespace agmm {

struct LocalLaunch {
  // One local rank's share.
  struct RankShare {
    int fed = 0;          // epochs given to the executor
    int outstanding = 0;  // of those, not done
    int succeeded = 0;    // of those
    std::deque<double> epoch_us;
    int64_t start_ns = 0;  // of the first epoch that began
    EpochReport last;      // of the last epoch that began
  };
  uint64_t job = 0;
  PlanPtr plan;
  uint64_t first_epoch = 0;
  int epochs = 0;
  Operands operands;
  Deadline deadline;
  std::vector<RankShare> shares;  // by LocalPlan::locals
  absl::Status status;            // the first error of an epoch
  absl::Status cancel;            // takes effect when the earlier launches of the plan have ended
  bool stopped = false;           // no further epoch is fed
};

using LaunchPtr = std::shared_ptr<LocalLaunch>;

// Devices take epochs in command order; each plan's launches are reported in command order. All
// methods are called within `calls->Do`.
class LocalLaunches {
 public:
  // `report` receives the answers, within Do. `unparked` is called within Do when a parked message
  // may have become acceptable, or can no longer become acceptable.
  LocalLaunches(int self_node, size_t devices, CallQueue* calls, Plans* plans,
                std::function<void(v1::Report)> report, std::function<void()> unparked);

  // `plan` is null if it is not prepared here.
  void Add(const v1::LaunchJob& command, const PlanPtr& plan);
  // Has no effect if the job is not running.
  void Cancel(uint64_t job, const absl::Status& reason);
  // Fails the launch of `epoch`, or without one the plan.
  void FailEpoch(const PlanPtr& plan, uint64_t epoch, const absl::Status& reason);
  // Ends the plan: no further epoch begins, and those in progress are cancelled.
  void Fail(const PlanPtr& plan, const absl::Status& reason);
  // Stops and reports those launches of the plan that can end now; forgets a plan that has ended.
  void Advance(const PlanPtr& plan);
  // Asks the executors for their progress in the job, and reports their answers.
  void Observe(const v1::ReportProgress& query, const std::vector<v1::NodePath>& paths);
  // The launch that contains `epoch`, or null.
  static LocalLaunch* Find(const LocalPlan& plan, uint64_t epoch);

 private:
  struct DeviceQueue {
    // The launches with the index of the device's share, in command order.
    std::deque<std::pair<LaunchPtr, int>> launches;
    int outstanding = 0;  // epochs
  };

  LaunchPtr Bind(const v1::LaunchJob& command, const PlanPtr& plan) const;
  // Gives a device its next epochs.
  void Feed(int device);
  // Called without the lock.
  void OnEpochDone(const LaunchPtr& launch, int index, const EpochReport& report);
  v1::Report ReportOf(const LocalLaunch& launch) const;
  // One local rank's share of a report.
  v1::RankReport RankReportOf(const LocalLaunch& launch, size_t index,
                              int64_t wall_offset_ns) const;

  const int self_node_;
  CallQueue* const calls_;
  Plans* const plans_;
  const std::function<void(v1::Report)> report_;
  const std::function<void()> unparked_;
  std::vector<DeviceQueue> devices_;
  std::map<uint64_t, LaunchPtr> jobs_;  // those not yet reported
};

}  // namespace agmm
