// Launched jobs, from the launch to the last node's report. Touched on the loop only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/figures.h"
#include "daemon/sequencer/history.h"
#include "daemon/sequencer/job.h"
#include "daemon/sequencer/members.h"
#include "daemon/sequencer/plan_cache.h"
#include "daemon/sequencer/progress_queries.h"
#include "kernels/base/clock.h"
#include "kernels/base/loop.h"

namespace agmm::scheduler {

class Launches {
 public:
  struct Parts {
    Loop* loop;
    const Clock* clock;
    Members* members;
    const Catalog* catalog;
    PlanCache* plans;
    History* history;
    ProgressQueries* progress;
    absl::Duration drain_limit;
    // Called when a launch failed: its plan is retired, and the queued jobs that hold it need
    // another one.
    std::function<void(PreparedPlan*)> on_plan_failed;
    // Called when no node uses the job.
    std::function<void(Job*)> on_over;
  };
  explicit Launches(Parts parts) : parts_(std::move(parts)) {}

  // Sends a queued job, whose leases are granted and whose plan is ready, to its nodes. Returns
  // false if its workspace needs memory that launched jobs will return. Errors: FAILED_PRECONDITION
  // for an input without contents; RESOURCE_EXHAUSTED if no launched job can return the memory.
  absl::StatusOr<bool> Launch(Job* job, absl::Duration left);
  void OnDone(int node, const v1::LaunchDone& done);
  // Makes the job's nodes end it. A node that does not end it within the drain limit is dropped,
  // unless messages of the job are in flight to or from it: then it has up to kMaxDrainLimits times
  // as long.
  void Cancel(Job* job, const absl::Status& reason, Job::Drain drain = Job::Drain::kEnd);
  // Called when the generation, and with it every launch, has ended.
  void Clear();

  // Returns the launched job that must end before `job` may be launched, or null.
  const Job* BlockerOf(const Job& job) const;
  // Returns the first launched job that may hold memory of `job`'s ranks, or null.
  const Job* OnRanksOf(const Job& job) const;
  // Returns the first job launched before `job` on its plan, or null. A node ends the launches of a
  // plan one after the other.
  const Job* BeforeOnPlan(const Job& job) const;
  // "job 3, which had not ended", or "job 3, which has ended and had not drained on node b".
  std::string DescribeEnd(const Job& launched) const;
  const std::map<uint64_t, Job*>& jobs() const { return launched_; }
  // Describes, as a clause, a later measurement of T_gemm or T_ag that differs from the job's
  // figures; empty without one.
  std::string LaterBaseline(const Job& job) const;

 private:
  absl::Status AddOperands(const Job& job, v1::LaunchJob* launch) const;
  // Returns the last job launched before `job` that still runs on nodes of `job`, or null.
  const Job* LastBefore(const Job& job) const;
  void SetRunning(Job* job, const std::string& message);
  // Keeps the first error, cancels the job on its other nodes, and retires the plan.
  void OnError(Job* job, int node, const absl::Status& error);
  void SetDrainTimer(Job* job);
  void OnDrainLimit(Job* job);
  // `busy` are the nodes with messages of the job in flight.
  void OnStillDraining(Job* job, const std::set<int>& busy);
  void Finish(Job* job);
  void MeasureTime(Job* job);
  void FillFigures(Job* job);
  Baselines BaselinesOf(const std::string& problem_key) const;

  const Parts parts_;
  std::map<uint64_t, Job*> launched_;           // by Job::launch
  std::map<std::string, Baselines> baselines_;  // by JobSpec::problem_key
  uint64_t next_launch_ = 1;
};

}  // namespace agmm::scheduler
