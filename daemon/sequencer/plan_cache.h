// Plans that the world has prepared: planned, verified, agreed by hash. On the loop only; planning
// and proving, which may take seconds, is done on a thread of its own.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/job/admission.h"
#include "daemon/job/figures.h"
#include "daemon/job/workspaces.h"
#include "daemon/observe/metrics.h"
#include "daemon/world/loop.h"
#include "daemon/world/members.h"

namespace agmm {

// What planning brings to light.
struct Planned {
  absl::Status status;  // of Plan; INTERNAL when the schedule does not verify
  std::string hash;
  int64_t workspace_bytes = 0;
  ScheduleFacts facts;
};
// Pure; takes up to a few seconds for the largest meshes.
Planned MakePlan(const JobSpec& job);

struct PreparedPlan {
  uint64_t id = 0;
  std::string key;
  std::vector<int> ranks;  // of the world, ascending
  std::set<int> nodes;     // that have ranks of it
  bool planning = true;
  Planned planned;          // once not planning
  std::set<int> preparing;  // nodes that have not answered PreparePlan
  absl::Status error;       // why it cannot be prepared
  bool sent = false;        // to the nodes
  bool retired = false;     // out of the cache; lives for its users and its answers
  uint64_t next_epoch = 1;
  int users = 0;     // jobs that hold it
  int launched = 0;  // those of them that have been launched and are not over everywhere
  uint64_t last_use = 0;
  // Lent by the pool while jobs of it are launched, so that it changes only when nothing of the
  // plan is; afterwards the id of the last.
  WorkspacePool::Loan workspace;
  bool settled() const { return !planning && preparing.empty(); }
  bool ready() const { return settled() && error.ok() && !retired; }
};

class PlanCache {
 public:
  // `planner` runs beside `loop`, and ends before it does. `on_planned(plan)` runs on the loop when
  // a plan that is held has been made; with an error it has been retired.
  PlanCache(Members* members, WorkspacePool* workspaces, Loop* loop, Loop* planner,
            Metrics* metrics, std::function<void(PreparedPlan*)> on_planned);
  ~PlanCache();

  // The plan for `job`, held for one job; begins to make it where there is none.
  PreparedPlan* Hold(const JobSpec& job);
  void LetGo(PreparedPlan* plan);
  // That the workspace of one that is made would have room if no other were lent.
  // Errors: RESOURCE_EXHAUSTED with HEAP_FULL, as it would be then.
  absl::Status CheckRoom(const PreparedPlan& plan) const;
  // For each launch; from the first to the last end the plan has its workspace.
  // Errors: RESOURCE_EXHAUSTED with HEAP_FULL; then nothing has begun.
  absl::Status BeginLaunch(PreparedPlan* plan);
  // Only when all nodes have reported the launch's end.
  void EndLaunch(PreparedPlan* plan);
  // Its slots are of no use any more: nobody gets it from now on.
  void Retire(PreparedPlan* plan);
  // True while a retired plan of this key is held.
  bool Retiring(const std::string& key) const;
  // A node's answer. Returns the plan when it was the last one: it is ready, or retired with its
  // error.
  PreparedPlan* OnPrepared(int node, const v1::PlanPrepared& prepared);
  // The generation has ended: so have all plans.
  void Forget();

 private:
  PreparedPlan* Make(const JobSpec& job);
  void OnPlanned(uint64_t id, const JobSpec& job, Planned planned);
  // Asks the nodes to prepare it.
  void Send(PreparedPlan* plan, const JobSpec& job);
  // Retires the plan that was idle longest. False when all are in use.
  bool RetireIdle();
  void EraseIfOver(PreparedPlan* plan);

  Members* const members_;
  WorkspacePool* const workspaces_;
  Loop* const loop_;
  Loop* const planner_;
  Metrics::Counter* const prepared_total_;
  Metrics::Counter* const cached_;
  const std::function<void(PreparedPlan*)> on_planned_;
  std::map<uint64_t, std::unique_ptr<PreparedPlan>> plans_;
  std::map<std::string, PreparedPlan*> by_key_;  // without the retired ones
  // True when nobody waits any more for what the planner has been given.
  std::shared_ptr<std::atomic<bool>> forgotten_ = std::make_shared<std::atomic<bool>>(false);
  uint64_t next_plan_ = 1, next_use_ = 1;
};

}  // namespace agmm
