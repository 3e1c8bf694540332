// From launch to the last node's report.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/job/scheduler_impl.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "proto/convert/status.h"

namespace agmm::scheduler {

bool SchedulerImpl::Launch(Job* job) {
  const absl::Duration left = job->deadline - clock_->Now();
  if (left <= absl::ZeroDuration()) {
    OnDeadline(job->id);
    return true;
  }
  v1::Command command;
  v1::LaunchJob* launch = command.mutable_launch_job();
  for (int i : {kA, kB, kC}) {
    const absl::StatusOr<v1::Tensor> tensor =
        catalog_->Leased(job->leases.at(job->spec.tensors[i]));
    absl::Status usable = tensor.status();
    if (usable.ok() && i != kC && tensor->state() != v1::Tensor::STATE_READY) {
      usable = absl::FailedPreconditionError(absl::StrFormat(
          "tensor %d stands for %s and has no contents: the write or the job that was to bring "
          "them has failed; write it and submit again",
          tensor->tensor_id(), job->spec.problem.tensors[i].name));
    }
    if (!usable.ok()) {
      End(job, v1::Job::STATE_FAILED, usable);
      return true;
    }
    launch->add_offset_bytes(tensor->offset_bytes());
    // Names the contents for ever: ids begin anew with a new sequencer, generations do not.
    launch->add_versions(Fnv1a(
        absl::StrCat(members_->generation(), " ", tensor->tensor_id(), " ", tensor->version())));
  }
  const Job* before = LaunchedOnRanksOf(*job);
  if (const absl::Status lent = plans_.BeginLaunch(job->plan); !lent.ok()) {
    // No deadlock: what is launched on its ranks has all that it needs and ends, and nothing goes
    // past it there.
    if (before != nullptr) return false;
    // There was room when it was admitted; tensors have taken it since.
    End(job, v1::Job::STATE_FAILED, Annotate(lent, "no room for the job's workspace"));
    return true;
  }
  launch->set_job_id(job->id);
  launch->set_plan_id(job->plan->id);
  launch->set_first_epoch(job->plan->next_epoch);
  launch->set_epoch_count(job->spec.repeat);
  launch->set_workspace_offset_bytes(job->plan->workspace.offset_bytes);
  *launch->mutable_timeout() = ToProto(left);
  job->plan->next_epoch += job->spec.repeat;
  job->warm = job->plan->next_epoch > 2;

  queue_.erase(job->id);
  job->launch = next_launch_++;
  launched_[job->launch] = job;
  job->reporting = job->plan->nodes;
  if (!job->record.has_start_time()) *job->record.mutable_start_time() = ToProto(clock_->Now());
  AddEvent(job, v1::Job::STATE_RUNNING,
           absl::StrFormat("launched %sfrom epoch %d of plan %d",
                           before == nullptr ? "" : absl::StrCat("behind job ", before->id, " "),
                           launch->first_epoch(), job->plan->id));
  for (int node : job->reporting) members_->Send(node, command);
  return true;
}

void SchedulerImpl::OnLaunchDone(int node, const v1::LaunchDone& done) {
  const auto it = jobs_.find(done.job_id());
  if (it == jobs_.end() || it->second->launch == 0 || it->second->reporting.erase(node) == 0)
    return;
  Job* job = it->second.get();
  job->touched_c |= done.began();
  for (const v1::RankReport& report : done.ranks()) job->reports[report.rank()] = report;
  if (absl::Status error = FromProto(done.error()); !error.ok()) OnLaunchError(job, node, error);
  if (job->reporting.empty()) FinishLaunch(job);
}

void SchedulerImpl::OnLaunchError(Job* job, int node, const absl::Status& error) {
  if (!job->first_error.ok()) return;
  job->first_error = Annotate(error, absl::StrCat("node ", members_->node_name(node)));
  const absl::Status others(
      absl::StatusCode::kAborted,
      absl::StrFormat("job %d failed on node %s", job->id, members_->node_name(node)));
  // The others wait for what will not come any more.
  CancelLaunch(job, others);
  if (job->plan->retired) return;
  PreparedPlan* plan = job->plan;
  plans_.Retire(plan);
  for (auto it = launched_.upper_bound(job->launch); it != launched_.end(); ++it) {
    if (it->second->plan != plan) continue;
    it->second->victim = true;
    CancelLaunch(it->second, others);
  }
  for (Job* waiting : QueuedOn(plan)) {
    plans_.LetGo(std::exchange(waiting->plan, nullptr));
    plans_missing_ = true;
  }
}

void SchedulerImpl::CancelLaunch(Job* job, const absl::Status& reason) {
  v1::Command command;
  command.mutable_cancel_launch()->set_job_id(job->id);
  *command.mutable_cancel_launch()->mutable_reason() = ToProto(reason);
  for (int node : job->reporting) members_->Send(node, command);
  if (std::exchange(job->draining, true)) return;
  job->drain_timer = loop_->PostAfter(drain_limit_, [this, id = job->id] { OnDrainLimit(id); });
}

const Job* SchedulerImpl::BeforeItOnPlan(const Job& job) const {
  for (const auto& [number, other] : launched_) {
    if (number >= job.launch) break;
    if (other->plan == job.plan) return other;
  }
  return nullptr;
}

// A node that beats and yet does not end what it was told to end would hold up the job, and its
// memory, for ever.
void SchedulerImpl::OnDrainLimit(uint64_t job_id) {
  Job* job = jobs_.at(job_id).get();
  if (BeforeItOnPlan(*job) != nullptr) {
    job->drain_timer = loop_->PostAfter(drain_limit_, [this, job_id] { OnDrainLimit(job_id); });
    return;
  }
  // Ends the generation, and with it everything.
  members_->Lose(*job->reporting.begin(),
                 absl::StrFormat("it has not reported the end of job %d within %s of its cancel",
                                 job_id, absl::FormatDuration(drain_limit_)));
}

void SchedulerImpl::FillFigures(Job* job) {
  const ScheduleFacts& facts = job->plan->planned.facts;
  PartTimes parts = PartTimesOf(facts, job->spec.problem.mesh, job->reports);
  if (parts.gemm_us > 0) {
    // The first epoch packs B, and would flatter whatever is compared with it.
    if (job->warm) {
      if (part_times_.size() >= kMaxPartTimes) part_times_.clear();
      part_times_[job->spec.problem_key] = parts;
    }
  } else if (const auto it = part_times_.find(job->spec.problem_key); it != part_times_.end()) {
    parts = it->second;
  }
  *job->record.mutable_figures() = FiguresOf(job->spec.problem, facts, parts, job->reports);
}

void SchedulerImpl::FinishLaunch(Job* job) {
  launched_.erase(job->launch);
  job->launch = 0;
  plans_.EndLaunch(job->plan);
  if (std::exchange(job->draining, false)) loop_->Cancel(job->drain_timer);
  if (job->ended) return GiveBack(job, false);
  if (job->first_error.ok()) FillFigures(job);
  if (job->victim && !job->first_error.ok() && job->end_as.ok()) return PutBack(job);
  for (auto& [rank, report] : job->reports) *job->record.add_ranks() = std::move(report);
  if (job->first_error.ok()) {
    End(job, v1::Job::STATE_SUCCEEDED, absl::OkStatus());
  } else if (!job->end_as.ok()) {
    End(job, v1::Job::STATE_CANCELLED, job->end_as);
  } else {
    End(job, v1::Job::STATE_FAILED, job->first_error);
  }
}

void SchedulerImpl::PutBack(Job* job) {
  plans_.LetGo(std::exchange(job->plan, nullptr));
  plans_missing_ = true;
  job->victim = false;
  job->first_error = absl::OkStatus();
  job->reports.clear();
  queue_[job->id] = job;
  if (job->deadline <= clock_->Now()) return OnDeadline(job->id);
  AddEvent(job, v1::Job::STATE_QUEUED, "put back: a job before it spoilt the plan they shared");
  RequestPump();
}

}  // namespace agmm::scheduler
