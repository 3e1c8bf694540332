// Plans that the world has prepared: planned, verified, agreed by hash, with workspace on every
// rank of their mesh. On the loop only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/job/admission.h"
#include "daemon/observe/metrics.h"
#include "daemon/tensor/placement.h"
#include "daemon/world/members.h"

namespace agmm {

struct PreparedPlan {
  uint64_t id = 0;
  std::string key;
  std::vector<int> ranks;  // of the world
  std::set<int> nodes;     // that have ranks of it
  std::string hash;
  int64_t workspace_offset = 0, workspace_bytes = 0;
  std::set<int> preparing;  // nodes that have not answered PreparePlan
  absl::Status error;       // why it cannot be prepared
  bool retired = false;     // out of the cache; lives for its users and its answers
  uint64_t next_epoch = 1;
  int users = 0;  // jobs that hold it
  uint64_t last_use = 0;
  bool ready() const { return preparing.empty() && error.ok() && !retired; }
};

class PlanCache {
 public:
  PlanCache(Members* members, Placement* placement, Metrics* metrics);

  // The plan for `job`, held for one job; begins to prepare it where there is none.
  // Errors: of Plan(); INTERNAL when the schedule does not verify; RESOURCE_EXHAUSTED.
  absl::StatusOr<PreparedPlan*> Hold(const JobSpec& job);
  void LetGo(PreparedPlan* plan);
  // Its slots are of no use any more: nobody gets it from now on.
  void Retire(PreparedPlan* plan);
  // True while a retired plan of this key has its workspace.
  bool Retiring(const std::string& key) const;
  // A node's answer. Returns the plan when it was the last one: it is ready, or retired with its
  // error.
  PreparedPlan* OnPrepared(int node, const v1::PlanPrepared& prepared);
  // Releases the plan that was idle longest. False when all are in use.
  bool Reclaim();
  // The generation has ended: so have all plans.
  void Forget();

 private:
  absl::StatusOr<std::unique_ptr<PreparedPlan>> Make(const JobSpec& job);
  void Erase(PreparedPlan* plan);

  Members* const members_;
  Placement* const placement_;
  Metrics::Counter* const prepared_total_;
  Metrics::Counter* const cached_;
  std::map<uint64_t, std::unique_ptr<PreparedPlan>> plans_;
  std::map<std::string, PreparedPlan*> by_key_;  // without the retired ones
  uint64_t next_plan_ = 1, next_use_ = 1;
};

}  // namespace agmm
