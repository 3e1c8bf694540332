// From admission to launch.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/job/scheduler_impl.h"
#include "kernels/base/status.h"
#include "proto/convert/status.h"

namespace agmm::scheduler {
namespace {

// Of two jobs; only such can share a tensor, for operands lie on the ranks of their job.
bool ShareRanks(const Job& a, const Job& b) {
  const std::vector<int>& theirs = b.spec.problem.mesh.ranks;
  return std::find_first_of(theirs.begin(), theirs.end(), a.spec.problem.mesh.ranks.begin(),
                            a.spec.problem.mesh.ranks.end()) != theirs.end();
}

bool NeedsWorkspace(const Job& job) { return job.plan->planned.workspace_bytes > 0; }

}  // namespace

void SchedulerImpl::Enqueue(Job* job) {
  queue_[job->id] = job;
  ++writers_[job->spec.tensors[kC]];
  if (job->plan == nullptr) plans_missing_ = true;
  std::set<uint64_t> tensors(std::begin(job->spec.tensors), std::end(job->spec.tensors));
  job->leases_awaited = static_cast<int>(tensors.size());
  for (uint64_t tensor : tensors) {
    job->leases[tensor] = catalog_->Acquire(tensor, [this, id = job->id](absl::Status granted) {
      Job* waiting = jobs_.at(id).get();
      --waiting->leases_awaited;
      if (waiting->lease_error.ok()) waiting->lease_error = granted;
      RequestPump();
    });
  }
  job->timer =
      loop_->PostAfter(job->deadline - clock_->Now(), [this, id = job->id] { OnDeadline(id); });
  RequestPump();
}

void SchedulerImpl::RequestPump() {
  if (pump_requested_) return;
  pump_requested_ = true;
  loop_->Post([this] {
    pump_requested_ = false;
    Pump();
  });
}

void SchedulerImpl::Pump() {
  TrimHistory();
  // Between two generations nothing is sent; what is queued is about to end.
  if (!members_->Complete().ok()) return;
  if (plans_missing_) HoldPlans();
  // Ranks of jobs passed over: each rank has its jobs in the order of admission.
  std::set<int> taken;
  for (auto it = queue_.begin(); it != queue_.end() && taken.size() < members_->ranks().size();) {
    Job* job = it->second;
    ++it;  // the job may leave the queue
    const std::vector<int>& ranks = job->spec.problem.mesh.ranks;
    if (std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return taken.count(rank) > 0; })) {
      taken.insert(ranks.begin(), ranks.end());
    } else if (!job->lease_error.ok()) {
      End(job, v1::Job::STATE_FAILED, job->lease_error);
    } else if (job->leases_awaited > 0 || job->plan == nullptr || !job->plan->ready() ||
               InTheWayOf(*job) != nullptr || !Launch(job)) {
      taken.insert(ranks.begin(), ranks.end());
    }
  }
}

void SchedulerImpl::HoldPlans() {
  plans_missing_ = false;
  for (const auto& [id, job] : queue_) {
    if (job->plan != nullptr) continue;
    if (plans_.Retiring(job->spec.plan_key)) {
      plans_missing_ = true;
      continue;
    }
    job->plan = plans_.Hold(job->spec);
    job->record.set_plan_hash(job->plan->planned.hash);
  }
}

// Jobs are launched ahead of each other's ends where each rank's own order keeps them apart. Not so
// where one reads what another writes, for the reader has to know how the writer ended; nor where
// another plan writes the same C, for a launch that is put back would come behind it; nor behind
// many epochs of the same plan, for a node ends its launches on a plan one after the other, and
// only a job in the queue can be cancelled, or time out, on its own; nor where it would take one
// more workspace from ranks whose jobs have kMaxWorkspaces.
const Job* SchedulerImpl::InTheWayOf(const Job& job) const {
  const uint64_t* mine = job.spec.tensors;
  const Job* first_on_plan = nullptr;
  const Job* first_with_workspace = nullptr;
  std::set<const PreparedPlan*> with_workspace;
  int64_t epochs = 0;
  for (const auto& [number, other] : launched_) {
    const uint64_t* theirs = other->spec.tensors;
    for (int i : {kA, kB}) {
      if (theirs[kC] == mine[i] || mine[kC] == theirs[i]) return other;
    }
    if (other->plan != job.plan) {
      if (theirs[kC] == mine[kC]) return other;
      if (NeedsWorkspace(*other) && ShareRanks(*other, job)) {
        if (with_workspace.empty()) first_with_workspace = other;
        with_workspace.insert(other->plan);
      }
      continue;
    }
    if (first_on_plan == nullptr) first_on_plan = other;
    epochs += other->spec.repeat;
  }
  if (epochs > kMaxEpochsAhead) return first_on_plan;
  if (job.plan->launched == 0 && NeedsWorkspace(job) && with_workspace.size() >= kMaxWorkspaces)
    return first_with_workspace;
  return launched_.size() < kMaxLaunched ? nullptr : launched_.begin()->second;
}

const Job* SchedulerImpl::LaunchedOnRanksOf(const Job& job) const {
  for (const auto& [number, other] : launched_) {
    if (ShareRanks(*other, job)) return other;
  }
  return nullptr;
}

void SchedulerImpl::OnDeadline(uint64_t job_id) {
  Job* job = jobs_.at(job_id).get();
  if (job->ended) return;
  if (job->launch == 0) {
    End(job, v1::Job::STATE_FAILED,
        absl::DeadlineExceededError(
            absl::StrFormat("job %d was queued for its whole time, %s; it waited for %s", job_id,
                            absl::FormatDuration(job->spec.timeout), WhatItWaitsFor(*job))));
    return;
  }
  if (const absl::Duration left = job->deadline + kDeadlineGrace - clock_->Now();
      left > absl::ZeroDuration()) {
    job->timer = loop_->PostAfter(left, [this, job_id] { OnDeadline(job_id); });
    return;
  }
  std::vector<std::string> names;
  for (int node : job->reporting) names.push_back(members_->node_name(node));
  const Job* before = BeforeItOnPlan(*job);
  const absl::Status late = WithReason(
      absl::DeadlineExceededError(absl::StrFormat(
          "job %d ran out of its %s; it was %s", job_id, absl::FormatDuration(job->spec.timeout),
          before == nullptr
              ? absl::StrCat("running on ", absl::StrJoin(names, ", "))
              : absl::StrFormat("launched behind job %d, which was running", before->id))),
      kReasonDeadline);
  CancelLaunch(job, late);
  if (before != nullptr) Conclude(job, v1::Job::STATE_FAILED, late);
}

std::string SchedulerImpl::WhatItWaitsFor(const Job& job) const {
  if (job.leases_awaited > 0) {
    return absl::StrFormat("%d of its tensors, which writes or reads admitted before still use",
                           job.leases_awaited);
  }
  if (job.plan == nullptr) return "its plan, which a failed job has just spoilt";
  if (job.plan->planning) return "its plan, which was being made";
  if (!job.plan->preparing.empty()) {
    std::vector<std::string> names;
    for (int node : job.plan->preparing) names.push_back(members_->node_name(node));
    return absl::StrFormat("its plan, which %s had not prepared", absl::StrJoin(names, ", "));
  }
  for (const auto& [id, before] : queue_) {
    if (id >= job.id) break;
    if (!ShareRanks(*before, job)) continue;
    return absl::StrFormat("job %d, which is before it in the queue and waited for %s", id,
                           WhatItWaitsFor(*before));
  }
  if (const Job* running = InTheWayOf(job); running != nullptr)
    return absl::StrFormat("job %d, which was running", running->id);
  if (const Job* running = LaunchedOnRanksOf(job); running != nullptr)
    return absl::StrFormat("room for its workspace, beside job %d, which was running", running->id);
  return "its launch";
}

std::vector<Job*> SchedulerImpl::QueuedOn(const PreparedPlan* plan) const {
  std::vector<Job*> jobs;
  for (const auto& [id, job] : queue_) {
    if (job->plan == plan) jobs.push_back(job);
  }
  return jobs;
}

void SchedulerImpl::OnPlanned(PreparedPlan* plan) {
  const absl::Status error = plan->error;
  for (Job* job : QueuedOn(plan)) {
    if (error.ok()) {
      job->record.set_plan_hash(plan->planned.hash);
      AnswerSubmitters(job);
    } else if (!job->submitters.empty()) {
      Withdraw(job, error);
    } else {
      End(job, v1::Job::STATE_FAILED, error);
    }
  }
}

void SchedulerImpl::OnPlanPrepared(int node, const v1::PlanPrepared& prepared) {
  PreparedPlan* plan = plans_.OnPrepared(node, prepared);
  if (plan == nullptr) return;
  if (const absl::Status error = plan->error; !error.ok()) {
    for (Job* job : QueuedOn(plan)) End(job, v1::Job::STATE_FAILED, error);
  }
  RequestPump();
}

}  // namespace agmm::scheduler
