// The sequencer's state of a job. Touched on the loop only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "agmm/v1/job.pb.h"
#include "daemon/sequencer/admission.h"
#include "daemon/sequencer/figures.h"
#include "daemon/sequencer/plan_cache.h"
#include "kernels/base/cancel.h"
#include "kernels/base/deadline.h"
#include "kernels/base/loop.h"
#include "proto/convert/plan_inputs.h"

namespace agmm::scheduler {

struct Job;

// A caller that waits for an event after `after_event`, or for the job's end.
struct Waiter {
  int64_t after_event = 0;
  std::function<void(const absl::Status&, Job&)> wake;
  std::shared_ptr<CancelToken> cancel;
  Loop::Timer timer = {};
};

// The begin and end of each step of a rank's last epoch, in microseconds since the epoch began.
// Takes a seventh of the memory of messages.
using StepTimes = std::vector<std::pair<float, float>>;

struct Job {
  uint64_t id = 0;
  JobSpec spec;
  v1::Job record;  // without times of steps
  Deadline deadline;
  Loop::Timer deadline_timer;

  // Set by History. True once the job has ended for its clients. A job that was launched behind
  // others on its plan may still be launched at that time: it keeps its memory until all nodes have
  // reported.
  bool ended = false;
  std::map<uint64_t, Waiter> waiters;
  size_t prune_waiters_at = 0;  // number of waiters at which those of lost callers are dropped
  std::map<int, StepTimes> step_times;       // by world rank; of the jobs that ended last
  int64_t record_bytes = 0, step_bytes = 0;  // counted for an ended job

  // Set by Queue; held until no node uses them.
  std::map<uint64_t, uint64_t> leases;  // by tensor
  int leases_awaited = 0;
  absl::Status lease_error;      // the generation has ended, or the tensor could not be placed
  PreparedPlan* plan = nullptr;  // null while a retired plan of the same key is still in use

  // Set by Launches.
  // Why a launched job is cancelled on its nodes: to end, or to be requeued because an earlier job
  // failed on the same plan.
  enum class Drain { kNone, kEnd, kRequeue };
  uint64_t launch = 0;          // rises in launch order; 0: not launched
  const Job* behind = nullptr;  // the last job launched before it that still runs on its ranks
  std::set<int> reporting;      // nodes that have not reported LaunchDone
  absl::Status first_error;     // the first error that a node reported
  Drain drain = Drain::kNone;
  Loop::Timer drain_timer;
  int drain_limits = 0;    // drain limits that passed while its messages were in flight
  bool warm = false;       // its last epoch is not the plan's first, which packs B
  bool began = false;      // an epoch began on some node, so the old contents of results are lost
  RankReports reports;     // until History keeps them
  int64_t running_ns = 0;  // when it became the first on its ranks, on Clock::Nanos; 0: not yet
  // Times of a job that succeeded: from running_ns to its end, and the usual one of such jobs on
  // its plan. 0: unknown.
  double took_us = 0, usual_us = 0;

  absl::Status end_as;  // the reason of a cancel; OK: none
};

// Only jobs that share a rank can share a tensor, because a job's operands are on its ranks.
inline bool ShareRanks(const Job& a, const Job& b) {
  const std::vector<int>& theirs = b.spec.problem.mesh.ranks;
  return std::find_first_of(theirs.begin(), theirs.end(), a.spec.problem.mesh.ranks.begin(),
                            a.spec.problem.mesh.ranks.end()) != theirs.end();
}

// Returns true if one of them writes a tensor of both.
inline bool OrderMatters(const Job& a, const Job& b) {
  for (const Binding& mine : a.spec.bindings) {
    for (const Binding& theirs : b.spec.bindings)
      if (mine.tensor == theirs.tensor && (mine.writes || theirs.writes)) return true;
  }
  return false;
}

// In the order of `a`'s mesh.
inline std::vector<int> RanksOfBoth(const Job& a, const Job& b) {
  const std::vector<int>& theirs = b.spec.problem.mesh.ranks;
  std::vector<int> both;
  for (int rank : a.spec.problem.mesh.ranks)
    if (std::find(theirs.begin(), theirs.end(), rank) != theirs.end()) both.push_back(rank);
  return both;
}

// Writes the known facts about the job's plan into the record: its hash, the options with the
// reason for their choice, and once it is prepared the device paths. Before the plan exists, writes
// the requested options.
inline void RecordPlan(Job* job) {
  v1::Job& record = job->record;
  if (job->plan == nullptr || job->plan->planning) {
    *record.mutable_options() = ToProto(job->spec.options);
    return;
  }
  const Planned& planned = job->plan->planned;
  *record.mutable_options() = ToProto(planned.options);
  record.set_explanation(planned.resolved.why);
  record.set_predicted_us(planned.predicted_us);
  record.set_plan_hash(planned.hash);
  record.set_schedule(planned.schedule);
  record.clear_device_paths();
  record.clear_device_products();
  if (!job->plan->settled()) return;
  for (const std::string& path : job->plan->device_paths) record.add_device_paths(path);
  for (const std::string& product : job->plan->device_products) record.add_device_products(product);
}

}  // namespace agmm::scheduler
