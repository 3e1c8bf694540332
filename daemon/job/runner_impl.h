// The runner's state. Commands are in runner.cc, what runs in runner_launch.cc, what arrives in
// runner_receive.cc.
//
// One mutex guards everything, and is never held while an executor, the transport or `report` is
// called: what is to be called is collected in an Actions and carried out after the lock is gone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "daemon/job/runner.h"
#include "daemon/world/loop.h"
#include "kernels/device/executor.h"
#include "kernels/schedule/schedule.h"

namespace agmm::runner {

// So many epochs are queued ahead on a device: enough that it never waits for the runner.
inline constexpr int kEpochsAhead = 4;
// Further ahead than that no peer can be.
inline constexpr uint64_t kMaxEpochsBeyond = uint64_t{1} << 20;
inline constexpr size_t kEpochTimesKept = 64;

struct Launch;

struct LocalRank {
  Rank rank = 0;   // of the mesh
  int device = 0;  // of this node
  std::unique_ptr<Executor> executor;
};

struct Plan {
  // Settled by Prepare.
  uint64_t id = 0;
  Problem problem;
  Schedule schedule;
  std::vector<int> nodes;    // by mesh rank
  std::vector<Heap*> heaps;  // by mesh rank; null on other nodes
  std::vector<LocalRank> locals;

  // Guarded by the runner's mutex.
  std::deque<std::shared_ptr<Launch>> launches;  // in command order, those not reported
  absl::Status failure;   // why no epoch begins any more; messages are dropped then
  bool released = false;  // goes when nothing runs or arrives any more
  int receives = 0;       // in flight
  uint64_t next_epoch = 1;
};

// One local rank's share of a launch.
struct Part {
  int fed = 0;          // epochs given to the executor
  int outstanding = 0;  // of those, not done
  int succeeded = 0;    // of those
  std::deque<double> epoch_us;
  int64_t start_ns = 0;  // of the first that began
  EpochReport last;
};

struct Launch {
  uint64_t job = 0;
  std::shared_ptr<Plan> plan;
  uint64_t first_epoch = 0;
  int epochs = 0;
  Operands operands;
  absl::Time deadline;
  std::vector<Part> parts;  // by Plan::locals
  absl::Status status;      // the first error of an epoch
  absl::Status cancel;      // asked for; comes into force behind the launches before it
  bool stopped = false;     // no further epoch of it is fed
};

struct DeviceQueue {
  Runner::LocalDevice local;
  std::deque<std::pair<std::shared_ptr<Launch>, int>> launches;  // with the part; in command order
  int outstanding = 0;
  bool feeding = false;  // somebody is in Feed and will look again
};

// What is to be called once the lock is gone.
struct Actions {
  std::vector<std::pair<std::shared_ptr<Plan>, absl::Status>> cancels;
  bool resume = false;
};

class RunnerImpl : public Runner {
 public:
  RunnerImpl(int self_node, int first_rank, std::vector<LocalDevice> devices,
             std::vector<int> node_of_rank, Metrics* metrics, ReportFn report);
  ~RunnerImpl() override;

  void SetTransport(Transport* transport, std::function<void()> resume) override;
  void Prepare(const v1::PreparePlan& command) override;
  void Launch(const v1::LaunchJob& command) override;
  void Cancel(const v1::CancelLaunch& command) override;
  void Release(const v1::ReleasePlan& command) override;
  void EndGeneration(const absl::Status& reason, std::function<void()> drained) override;
  std::vector<DeviceCounters> counters() const override;

  Verdict Accept(int from_node, const Message& message, int64_t bytes, Rows* to) override;
  void Lost(int from_node, const Message& message, const absl::Status& why) override;
  void Arrived(int from_node, const Message& message, const absl::Status& status) override;

 private:
  using LaunchPtr = std::shared_ptr<runner::Launch>;
  using PlanPtr = std::shared_ptr<Plan>;

  // On the helper's thread.
  void PrepareNow(const v1::PreparePlan& command);
  // `hash` is set as soon as the schedule is there.
  absl::Status Make(const v1::PreparePlan& command, Plan* plan, std::string* hash);
  absl::Status PrepareExecutors(Plan* plan);
  // A plan whose executors go on the helper's thread: they wait for their device there.
  PlanPtr NewPlan();
  PlanPtr FindPlan(uint64_t id);
  LaunchPtr Bind(const v1::LaunchJob& command, const PlanPtr& plan);

  // Gives a device the epochs that are next in its queue.
  void Feed(int device);
  void FeedAll();
  void OnEpochDone(const LaunchPtr& launch, int part, const EpochReport& report);
  // Brings the plan's launches as far as they are: stops what has failed, reports what is over.
  void Advance(const PlanPtr& plan, Actions* actions);
  // No epoch of the plan begins any more, those in progress are cancelled.
  void Fail(const PlanPtr& plan, const absl::Status& reason, Actions* actions);
  bool Over(const runner::Launch& launch) const;
  v1::Report ReportOf(const runner::Launch& launch) const;
  void EraseIfOver(const PlanPtr& plan);
  // The launch that `epoch` belongs to, or null.
  static runner::Launch* LaunchOf(const Plan& plan, uint64_t epoch);

  // Every path that calls out counts as busy from before the lock is gone until after the last
  // call, so that a generation does not count as drained meanwhile.
  void Act(const Actions& actions);
  // Sends what is in reports_; one thread at a time, so that reports leave in their order.
  void SendReports();
  void EndBusy();

  const int self_node_, first_rank_;
  const std::vector<int> node_of_rank_;
  const ReportFn report_;
  Metrics::Counter* const prepared_;
  Metrics::Counter* const launched_;
  Metrics::Counter* const dropped_;
  Metrics::Counter* const parked_total_;
  Transport* transport_ = nullptr;
  std::function<void()> resume_;

  mutable std::mutex mutex_;  // guards all that follows
  std::vector<DeviceQueue> devices_;
  std::map<uint64_t, PlanPtr> plans_;
  std::map<uint64_t, LaunchPtr> jobs_;  // not reported
  std::deque<v1::Report> reports_;
  bool reporting_ = false;
  bool parked_ = false;  // something waits for a launch
  int busy_ = 0;
  int live_plans_ = 0;  // until their executors are gone
  // Of the generation's end: who wants to know when it has drained.
  std::vector<std::function<void()>> drained_;
  bool ending_ = false;

  Loop helper_;  // last: what runs on it uses all of the above
};

}  // namespace agmm::runner
