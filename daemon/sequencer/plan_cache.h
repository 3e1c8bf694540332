// Plans that the world has prepared: planned, verified, and compared by hash. Touched on the loop
// only, except planning and proving, which may take seconds and have threads of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/observe/metrics.h"
#include "daemon/sequencer/admission.h"
#include "daemon/sequencer/members.h"
#include "daemon/sequencer/planning.h"
#include "daemon/sequencer/workspaces.h"
#include "kernels/base/loop.h"

namespace agmm {

// The threads that plan and prove schedules. Large ones have their own, so that the others, which
// take milliseconds, do not wait for them.
struct Planners {
  Loop *small = nullptr, *large = nullptr;
};

struct PreparedPlan {
  uint64_t id = 0;
  std::string key;
  std::vector<int> ranks;  // world ranks, ascending
  std::set<int> nodes;     // nodes of these ranks
  bool planning = true;
  Planned planned;    // valid once `planning` is false
  int64_t bytes = 0;  // on the node that uses most
  // As in v1::Job; whole once settled.
  std::set<std::string> device_paths, device_products;
  std::set<int> preparing;  // nodes that have not answered PreparePlan
  absl::Status error;       // the reason why it cannot be prepared
  bool sent = false;        // PreparePlan has been sent to the nodes
  // Out of the cache. Exists until no job holds it and all nodes have answered.
  bool retired = false;
  uint64_t next_epoch = 1;
  int users = 0;     // jobs that hold it
  int launched = 0;  // users that are launched and have not ended on every node
  uint64_t last_use = 0;
  double usual_epoch_us = 0;  // running mean over its jobs that succeeded; 0: unknown
  // Lent by the pool while jobs on the plan are launched, so it never changes during a launch;
  // afterwards the id of the last workspace.
  WorkspacePool::Loan workspace;
  bool settled() const { return !planning && preparing.empty(); }
  bool ready() const { return settled() && error.ok() && !retired; }
};

// Returns the command to prepare the job's plan under `id`.
v1::PreparePlan PrepareCommand(uint64_t id, const JobSpec& job, const Planned& planned);

class PlanCache {
 public:
  // The planners run in parallel to `loop`, and end before it. Beyond `max_bytes` per node, plans
  // that no job holds are dropped, least recently used first. `on_change(plan)` runs on the loop
  // when a plan that jobs hold has been made, and when all nodes have answered; a plan with an
  // error has been retired.
  PlanCache(Members* members, WorkspacePool* workspaces, Loop* loop, const Planners& planners,
            int64_t max_bytes, Metrics* metrics, std::function<void(PreparedPlan*)> on_change);
  ~PlanCache();

  // Returns the plan for `job`, held for one job; starts planning if the cache does not have it.
  PreparedPlan* Hold(const JobSpec& job);
  void LetGo(PreparedPlan* plan);
  // Checks that the workspace of a plan would have room if no other workspace were lent. Errors:
  // RESOURCE_EXHAUSTED with HEAP_FULL, as in that case.
  absl::Status CheckRoom(const PreparedPlan& plan) const;
  // Counts a launch. The plan keeps its workspace until its last launch ends.
  // Errors: RESOURCE_EXHAUSTED with HEAP_FULL, without an effect.
  absl::Status BeginLaunch(PreparedPlan* plan);
  // Requires that all nodes have reported the launch's end.
  void EndLaunch(PreparedPlan* plan);
  // Removes the plan from the cache, because its slots are in an unknown state.
  void Retire(PreparedPlan* plan);
  // Returns true while a retired plan of this key is held.
  bool Retiring(const std::string& key) const;
  // Handles a node's answer.
  void OnPrepared(int node, const v1::PlanPrepared& prepared);
  // Drops all plans, because the generation has ended.
  void Forget();

 private:
  // Set when the generation ends: the planners then drop their work.
  using Forgotten = std::shared_ptr<std::atomic<bool>>;

  PreparedPlan* Make(const JobSpec& job);
  // Called on a planner's thread: the small planner begins all plans but those whose choice takes
  // long, and finishes all but the large ones.
  void Begin(uint64_t id, const JobSpec& job, const Forgotten& forgotten);
  void Finish(uint64_t id, const JobSpec& job, Planned planned, const Forgotten& forgotten);
  // On the loop.
  void OnPlanned(uint64_t id, const JobSpec& job, Planned planned);
  // Retires a plan with an error, and notifies the jobs that hold it.
  void Settle(PreparedPlan* plan);
  // Sends PreparePlan to the nodes.
  void Send(PreparedPlan* plan, const JobSpec& job);
  // Retires idle plans until the others are within the bounds.
  void Trim();
  // Returns the idle plan to retire next, or null.
  PreparedPlan* NextToRetire() const;
  void EraseIfOver(PreparedPlan* plan);

  Members* const members_;
  WorkspacePool* const workspaces_;
  Loop* const loop_;
  const Planners planners_;
  const int64_t max_bytes_;
  Metrics::Counter* const prepared_total_;
  Metrics::Counter* const cached_;
  const std::function<void(PreparedPlan*)> on_change_;
  std::map<uint64_t, std::unique_ptr<PreparedPlan>> plans_;
  std::map<std::string, PreparedPlan*> by_key_;  // without retired plans
  Forgotten forgotten_ = std::make_shared<std::atomic<bool>>(false);
  uint64_t next_plan_ = 1, next_use_ = 1;
};

}  // namespace agmm
