#include "daemon/job/plan_cache.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {
constexpr size_t kMaxPlans = 64;
}  // namespace

PlanCache::PlanCache(Members* members, Placement* placement, Metrics* metrics)
    : members_(members),
      placement_(placement),
      prepared_total_(metrics->counter("plans_prepared_total")),
      cached_(metrics->counter("plans_cached")) {}

absl::StatusOr<PreparedPlan*> PlanCache::Hold(const JobSpec& job) {
  PreparedPlan* plan = nullptr;
  if (const auto it = by_key_.find(job.plan_key); it != by_key_.end()) {
    plan = it->second;
  } else {
    AGMM_ASSIGN_OR_RETURN(std::unique_ptr<PreparedPlan> made, Make(job));
    plan = made.get();
    by_key_[plan->key] = plan;
    plans_[plan->id] = std::move(made);
    cached_->Add(1);
  }
  ++plan->users;
  plan->last_use = next_use_++;
  while (by_key_.size() > kMaxPlans && Reclaim()) {
  }
  return plan;
}

absl::StatusOr<std::unique_ptr<PreparedPlan>> PlanCache::Make(const JobSpec& job) {
  AGMM_ASSIGN_OR_RETURN(const Schedule schedule, Plan(job.problem, job.topology, job.options));
  if (absl::Status proof = Verify(job.problem, job.topology, schedule); !proof.ok()) {
    return absl::InternalError(absl::StrFormat(
        "the %s schedule of %s does not verify and will not run: %s; choose another "
        "algorithm and report this",
        job.options.algorithm, ToString(job.problem), proof.message()));
  }
  auto plan = std::make_unique<PreparedPlan>();
  plan->key = job.plan_key;
  plan->ranks = job.problem.mesh.ranks;
  plan->nodes = {job.topology.node_of_rank.begin(), job.topology.node_of_rank.end()};
  plan->preparing = plan->nodes;
  plan->hash = HashHex(PlanHash(job.problem, schedule));
  plan->workspace_bytes = schedule.workspace_bytes;
  if (plan->workspace_bytes > 0) {
    AGMM_ASSIGN_OR_RETURN(
        plan->workspace_offset,
        placement_->Allocate(plan->ranks, plan->workspace_bytes, MemoryClass::kWorkspace));
  }
  plan->id = next_plan_++;

  v1::Command command;
  v1::PreparePlan* prepare = command.mutable_prepare_plan();
  prepare->set_plan_id(plan->id);
  prepare->set_spec(job.spec);
  *prepare->mutable_mesh() = ToProto(job.problem.mesh);
  prepare->set_m(job.problem.m());
  prepare->set_n(job.problem.n());
  prepare->set_k(job.problem.k());
  prepare->set_dtype(ToProto(job.problem.tensors[kA].dtype));
  *prepare->mutable_options() = ToProto(job.options);
  prepare->set_plan_hash(plan->hash);
  prepare->set_workspace_offset_bytes(plan->workspace_offset);
  for (int node : plan->nodes) members_->Send(node, command);
  return plan;
}

void PlanCache::LetGo(PreparedPlan* plan) {
  --plan->users;
  if (plan->retired && plan->users == 0 && plan->preparing.empty()) Erase(plan);
}

void PlanCache::Retire(PreparedPlan* plan) {
  if (plan->retired) return;
  plan->retired = true;
  by_key_.erase(plan->key);
  cached_->Add(-1);
  if (plan->users == 0 && plan->preparing.empty()) Erase(plan);
}

bool PlanCache::Retiring(const std::string& key) const {
  for (const auto& [id, plan] : plans_) {
    if (plan->retired && plan->key == key) return true;
  }
  return false;
}

PreparedPlan* PlanCache::OnPrepared(int node, const v1::PlanPrepared& prepared) {
  const auto it = plans_.find(prepared.plan_id());
  if (it == plans_.end() || it->second->preparing.erase(node) == 0) return nullptr;
  PreparedPlan* plan = it->second.get();
  absl::Status error =
      Annotate(FromProto(prepared.error()), absl::StrCat("node ", members_->node_name(node)));
  if (error.ok() && prepared.plan_hash() != plan->hash) {
    error = absl::InternalError(absl::StrFormat(
        "node %s planned %s where the sequencer planned %s; the daemons differ: install one build "
        "everywhere",
        members_->node_name(node), prepared.plan_hash(), plan->hash));
  }
  if (plan->error.ok()) plan->error = error;
  if (!plan->preparing.empty()) return nullptr;
  if (plan->error.ok()) {
    prepared_total_->Add();
    return plan;
  }
  const bool awaited = plan->users > 0;
  Retire(plan);
  return awaited ? plan : nullptr;
}

bool PlanCache::Reclaim() {
  PreparedPlan* oldest = nullptr;
  for (const auto& [key, plan] : by_key_) {
    if (plan->users > 0 || !plan->preparing.empty()) continue;
    if (oldest == nullptr || plan->last_use < oldest->last_use) oldest = plan;
  }
  if (oldest == nullptr) return false;
  Retire(oldest);
  return true;
}

void PlanCache::Erase(PreparedPlan* plan) {
  v1::Command command;
  command.mutable_release_plan()->set_plan_id(plan->id);
  for (int node : plan->nodes) members_->Send(node, command);
  if (plan->workspace_bytes > 0) {
    // What is sent for this space from now on comes behind the release on every node's stream.
    placement_->Free(plan->ranks, plan->workspace_offset, plan->workspace_bytes,
                     MemoryClass::kWorkspace);
  }
  plans_.erase(plan->id);
}

void PlanCache::Forget() {
  for (const auto& [id, plan] : plans_) {
    if (plan->workspace_bytes > 0) {
      placement_->Free(plan->ranks, plan->workspace_offset, plan->workspace_bytes,
                       MemoryClass::kWorkspace);
    }
  }
  cached_->Add(-static_cast<int64_t>(by_key_.size()));
  by_key_.clear();
  plans_.clear();
}

}  // namespace agmm
