#include "daemon/sequencer/plan_cache.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/memory.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {
constexpr size_t kMaxPlans = 64;
}  // namespace

v1::PreparePlan PrepareCommand(uint64_t id, const JobSpec& job, const Planned& planned) {
  v1::PreparePlan prepare;
  prepare.set_plan_id(id);
  SetProblem(job.problem, &prepare);
  *prepare.mutable_recipe() = ToProto(planned.resolved.recipe);
  prepare.set_plan_hash(planned.hash);
  prepare.set_large(planned.large);
  for (int island : job.topology.island_of_rank) prepare.add_islands(island);
  return prepare;
}

PlanCache::PlanCache(Members* members, WorkspacePool* workspaces, Loop* loop,
                     const Planners& planners, int64_t max_bytes, Metrics* metrics,
                     std::function<void(PreparedPlan*)> on_change)
    : members_(members),
      workspaces_(workspaces),
      loop_(loop),
      planners_(planners),
      max_bytes_(max_bytes),
      prepared_total_(metrics->counter("plans_prepared_total")),
      cached_(metrics->counter("plans_cached")),
      on_change_(std::move(on_change)) {}

PlanCache::~PlanCache() { *forgotten_ = true; }

PreparedPlan* PlanCache::Hold(const JobSpec& job) {
  const auto it = by_key_.find(job.plan_key);
  PreparedPlan* plan = it == by_key_.end() ? Make(job) : it->second;
  ++plan->users;
  plan->last_use = next_use_++;
  Trim();
  return plan;
}

absl::Status PlanCache::CheckRoom(const PreparedPlan& plan) const {
  if (plan.planned.workspace_bytes == 0) return absl::OkStatus();
  return Annotate(workspaces_->CheckRoom(plan.ranks, plan.planned.workspace_bytes),
                  "no room for the job's workspace, even if no other job held one");
}

absl::Status PlanCache::BeginLaunch(PreparedPlan* plan) {
  if (plan->launched == 0 && plan->planned.workspace_bytes > 0) {
    AGMM_ASSIGN_OR_RETURN(
        plan->workspace,
        workspaces_->Take(plan->ranks, plan->planned.workspace_bytes, plan->workspace.id));
  }
  ++plan->launched;
  return absl::OkStatus();
}

void PlanCache::EndLaunch(PreparedPlan* plan) {
  if (--plan->launched == 0 && plan->workspace.id != 0) workspaces_->Return(plan->workspace.id);
}

PreparedPlan* PlanCache::Make(const JobSpec& job) {
  auto made = std::make_unique<PreparedPlan>();
  PreparedPlan* plan = made.get();
  plan->id = next_plan_++;
  plan->key = job.plan_key;
  plan->ranks = job.problem.mesh.ranks;
  std::sort(plan->ranks.begin(), plan->ranks.end());
  plan->nodes = {job.topology.node_of_rank.begin(), job.topology.node_of_rank.end()};
  by_key_[plan->key] = plan;
  plans_[plan->id] = std::move(made);
  cached_->Add(1);
  (ChoosesLong(job) ? planners_.large : planners_.small)
      ->Post([this, id = plan->id, job, forgotten = forgotten_] { Begin(id, job, forgotten); });
  return plan;
}

void PlanCache::Begin(uint64_t id, const JobSpec& job, const Forgotten& forgotten) {
  while (!*forgotten && AGMM_FAILPOINT("scheduler.hold_plan"))
    absl::SleepFor(absl::Milliseconds(1));
  if (*forgotten) return;
  Planned planned = BeginPlan(job);
  if (!planned.status.ok() || !planned.large || ChoosesLong(job))
    return Finish(id, job, std::move(planned), forgotten);
  planners_.large->Post([this, id, job, forgotten, planned = std::move(planned)] {
    Finish(id, job, planned, forgotten);
  });
}

void PlanCache::Finish(uint64_t id, const JobSpec& job, Planned planned,
                       const Forgotten& forgotten) {
  while (!*forgotten && planned.large && AGMM_FAILPOINT("scheduler.hold_large_plan"))
    absl::SleepFor(absl::Milliseconds(1));
  if (*forgotten) return;
  if (planned.status.ok()) FinishPlan(job, planned);
  // Returns the memory of the schedule and its proof, hundreds of MiB.
  if (planned.large) ReturnFreedMemory();
  loop_->Post([this, id, job, forgotten, planned = std::move(planned)]() mutable {
    if (!*forgotten) OnPlanned(id, job, std::move(planned));
  });
}

void PlanCache::OnPlanned(uint64_t id, const JobSpec& job, Planned planned) {
  PreparedPlan* plan = plans_.at(id).get();
  plan->planning = false;
  plan->planned = std::move(planned);
  plan->error = plan->planned.status;
  if (plan->error.ok() && plan->users > 0) plan->error = CheckRoom(*plan);
  if (plan->error.ok()) Send(plan, job);
  Settle(plan);
}

void PlanCache::Settle(PreparedPlan* plan) {
  const bool awaited = plan->users > 0;
  if (!plan->error.ok()) Retire(plan);
  if (awaited) on_change_(plan);
}

void PlanCache::Send(PreparedPlan* plan, const JobSpec& job) {
  plan->sent = true;
  plan->preparing = plan->nodes;
  v1::Command command;
  *command.mutable_prepare_plan() = PrepareCommand(plan->id, job, plan->planned);
  for (int node : plan->nodes) members_->Send(node, command);
}

void PlanCache::LetGo(PreparedPlan* plan) {
  if (--plan->users > 0) return;
  EraseIfOver(plan);
  Trim();
}

void PlanCache::Retire(PreparedPlan* plan) {
  if (plan->retired) return;
  plan->retired = true;
  by_key_.erase(plan->key);
  cached_->Add(-1);
  EraseIfOver(plan);
}

bool PlanCache::Retiring(const std::string& key) const {
  return std::any_of(plans_.begin(), plans_.end(), [&](const auto& entry) {
    return entry.second->retired && entry.second->key == key;
  });
}

void PlanCache::OnPrepared(int node, const v1::PlanPrepared& prepared) {
  const auto it = plans_.find(prepared.plan_id());
  if (it == plans_.end() || it->second->preparing.erase(node) == 0) return;
  PreparedPlan* plan = it->second.get();
  absl::Status error =
      Annotate(FromProto(prepared.error()), absl::StrCat("node ", members_->node_name(node)));
  if (error.ok() && prepared.plan_hash() != plan->planned.hash) {
    error = absl::InternalError(absl::StrFormat(
        "node %s planned %s where the sequencer planned %s; the daemons differ, install one build "
        "everywhere",
        members_->node_name(node), prepared.plan_hash(), plan->planned.hash));
  }
  if (plan->error.ok()) plan->error = error;
  plan->bytes = std::max(plan->bytes, prepared.plan_bytes());
  plan->device_paths.insert(prepared.device_paths().begin(), prepared.device_paths().end());
  plan->device_products.insert(prepared.device_products().begin(),
                               prepared.device_products().end());
  if (!plan->preparing.empty()) return;
  if (plan->error.ok()) prepared_total_->Add();
  Settle(plan);
  Trim();
}

void PlanCache::Trim() {
  while (PreparedPlan* plan = NextToRetire()) Retire(plan);
}

// A plan that alone exceeds the bound is dropped with its last user and displaces no other plan.
PreparedPlan* PlanCache::NextToRetire() const {
  PreparedPlan* oldest = nullptr;
  int64_t bytes = 0;
  for (const auto& [key, plan] : by_key_) {
    const bool idle = plan->users == 0 && plan->settled();
    if (plan->bytes > max_bytes_) {
      if (idle) return plan;
      continue;
    }
    bytes += plan->bytes;
    if (idle && (oldest == nullptr || plan->last_use < oldest->last_use)) oldest = plan;
  }
  return by_key_.size() > kMaxPlans || bytes > max_bytes_ ? oldest : nullptr;
}

void PlanCache::EraseIfOver(PreparedPlan* plan) {
  if (!plan->retired || plan->users > 0 || !plan->settled()) return;
  if (plan->sent) {
    v1::Command command;
    command.mutable_release_plan()->set_plan_id(plan->id);
    for (int node : plan->nodes) members_->Send(node, command);
  }
  plans_.erase(plan->id);
}

void PlanCache::Forget() {
  *std::exchange(forgotten_, std::make_shared<std::atomic<bool>>(false)) = true;
  cached_->Add(-static_cast<int64_t>(by_key_.size()));
  by_key_.clear();
  plans_.clear();
  workspaces_->Forget();
}

}  // namespace agmm
