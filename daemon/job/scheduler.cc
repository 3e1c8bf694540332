#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/job/scheduler_impl.h"
#include "kernels/base/status.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm {
namespace scheduler {
namespace {

// What has to be equal for a request id to name the same job.
std::string BodyOf(v1::SubmitJobRequest request) {
  request.clear_session_id();
  return request.SerializeAsString();
}

}  // namespace

SchedulerImpl::SchedulerImpl(const Parts& parts)
    : loop_(parts.loop),
      clock_(parts.clock),
      members_(parts.members),
      placement_(parts.placement),
      catalog_(parts.catalog),
      transport_(parts.transport),
      drain_limit_(parts.drain_limit),
      workspaces_(parts.placement, parts.metrics),
      plans_(parts.members, &workspaces_, parts.loop, parts.planner, parts.metrics,
             [this](PreparedPlan* plan) { OnPlanned(plan); }),
      requests_(parts.clock),
      submitted_(parts.metrics->counter("jobs_submitted_total")),
      succeeded_(parts.metrics->counter("jobs_succeeded_total")),
      failed_(parts.metrics->counter("jobs_failed_total")),
      cancelled_(parts.metrics->counter("jobs_cancelled_total")) {
  placement_->set_reclaim([this](const std::vector<int>& ranks, int64_t bytes) {
    return workspaces_.Reclaim(ranks, bytes);
  });
}

SchedulerImpl::~SchedulerImpl() { placement_->set_reclaim(nullptr); }

void SchedulerImpl::SubmitJob(const CallContext& ctx, const v1::SubmitJobRequest& request,
                              Reply<v1::Job> reply) {
  SubmitAs(ctx, request, {std::move(reply), /*runs=*/false, ctx.cancel});
}

void SchedulerImpl::RunJob(const CallContext& ctx, const v1::SubmitJobRequest& request,
                           Reply<v1::Job> reply) {
  SubmitAs(ctx, request, {std::move(reply), /*runs=*/true, ctx.cancel});
}

void SchedulerImpl::SubmitAs(const CallContext& ctx, const v1::SubmitJobRequest& request,
                             Submitter submitter) {
  if (!request.request_id().empty()) {
    const RequestLog::Entry* known = requests_.Find(request.request_id());
    if (known != nullptr) return Repeat(*known, request, std::move(submitter));
  }
  if (absl::Status status = Submit(ctx, request, &submitter); !status.ok()) submitter.reply(status);
}

void SchedulerImpl::Repeat(const RequestLog::Entry& entry, const v1::SubmitJobRequest& request,
                           Submitter submitter) {
  if (!RequestLog::Same(entry, BodyOf(request))) {
    return submitter.reply(absl::AlreadyExistsError(absl::StrFormat(
        "request id %s was used for job %d with another body; use a new id for a new job",
        request.request_id(), entry.job_id)));
  }
  if (const auto it = jobs_.find(entry.job_id); it != jobs_.end()) {
    Job* job = it->second.get();
    if (job->submitters.empty()) return AnswerSubmitter(job, std::move(submitter));
    job->submitters.push_back(std::move(submitter));
    return;
  }
  v1::Job job;
  job.set_job_id(entry.job_id);
  job.set_sequencer(members_->incarnation());
  job.set_request_id(request.request_id());
  job.set_state(entry.state);
  *job.mutable_end_time() = ToProto(entry.end);
  job.set_explanation(absl::StrFormat(
      "the details are forgotten: %d jobs have ended since this one did", kMaxEnded));
  if (entry.code != absl::StatusCode::kOk) {
    job.mutable_error()->set_code(static_cast<int>(entry.code));
    job.mutable_error()->set_message("the message is forgotten");
  }
  submitter.reply(std::move(job));
}

absl::Status SchedulerImpl::Submit(const CallContext& ctx, const v1::SubmitJobRequest& request,
                                   Submitter* submitter) {
  AGMM_RETURN_IF_ERROR(members_->Complete());
  if (queue_.size() >= kMaxQueued) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d jobs are queued, the most that are kept; wait for some to end", queue_.size()));
  }
  if (!request.request_id().empty()) AGMM_RETURN_IF_ERROR(requests_.CheckRoom());
  AGMM_ASSIGN_OR_RETURN(JobSpec spec, Admit(request, *members_, *catalog_, [this](uint64_t tensor) {
                          return writers_.count(tensor) > 0;
                        }));
  PreparedPlan* plan = plans_.Retiring(spec.plan_key) ? nullptr : plans_.Hold(spec);
  if (!spec.new_c.empty()) {
    const absl::StatusOr<uint64_t> c = CreateC(ctx, request, spec);
    if (!c.ok()) {
      if (plan != nullptr) plans_.LetGo(plan);
      return c.status();
    }
    spec.tensors[kC] = *c;
  }

  auto owned = std::make_unique<Job>();
  Job* job = owned.get();
  job->id = next_job_++;
  job->spec = std::move(spec);
  job->plan = plan;
  job->deadline = clock_->Now() + job->spec.timeout;
  job->record = RecordOf(*job, ctx, request);
  AddEvent(job, v1::Job::STATE_QUEUED, "admitted");
  jobs_[job->id] = std::move(owned);
  if (!request.request_id().empty())
    requests_.Add(request.request_id(), BodyOf(request), job->id, job->spec.timeout);
  job->submitters.push_back(std::move(*submitter));
  Enqueue(job);
  if (plan != nullptr && plan->planning) return absl::OkStatus();
  // Asked with the C that was made for it in its place.
  const absl::Status room = plan == nullptr ? absl::OkStatus() : plans_.CheckRoom(*plan);
  room.ok() ? AnswerSubmitters(job) : Withdraw(job, room);
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SchedulerImpl::CreateC(const CallContext& ctx,
                                                const v1::SubmitJobRequest& request,
                                                const JobSpec& spec) {
  v1::CreateTensorRequest create;
  create.set_name(spec.new_c);
  create.set_session_id(request.session_id());
  *create.mutable_spec() = ToProto(spec.problem.mesh, spec.problem.tensors[kC]);
  return catalog_->CreateAtOnce(ctx, create);
}

v1::Job SchedulerImpl::RecordOf(const Job& job, const CallContext& ctx,
                                const v1::SubmitJobRequest& request) const {
  const JobSpec& spec = job.spec;
  const Problem& problem = spec.problem;
  v1::Job record;
  record.set_job_id(job.id);
  record.set_sequencer(members_->incarnation());
  record.set_request_id(request.request_id());
  record.set_session_id(request.session_id());
  record.set_spec(request.spec());
  *record.mutable_mesh() = ToProto(problem.mesh);
  record.set_m(problem.m());
  record.set_n(problem.n());
  record.set_k(problem.k());
  record.set_dtype(ToProto(problem.tensors[kA].dtype));
  for (uint64_t tensor : spec.tensors) record.add_tensor_ids(tensor);
  *record.mutable_options() = ToProto(spec.options);
  record.set_explanation(spec.explanation);
  if (job.plan != nullptr) record.set_plan_hash(job.plan->planned.hash);
  record.set_repeat_count(spec.repeat);
  *record.mutable_timeout() = ToProto(spec.timeout);
  *record.mutable_create_time() = ToProto(clock_->Now());
  record.set_owner(ctx.principal);
  record.set_generation(members_->generation());
  std::set<std::string> engines;
  for (int rank : problem.mesh.ranks) engines.insert(members_->ranks()[rank].device);
  record.set_engine(absl::StrJoin(engines, "; "));
  const std::vector<int>& nodes = spec.topology.node_of_rank;
  if (std::count(nodes.begin(), nodes.end(), nodes[0]) != static_cast<int64_t>(nodes.size()))
    record.set_transport(transport_);
  return record;
}

void SchedulerImpl::AnswerSubmitters(Job* job) {
  if (job->submitters.empty()) return;
  submitted_->Add();
  for (Submitter& submitter : std::exchange(job->submitters, {}))
    AnswerSubmitter(job, std::move(submitter));
}

absl::StatusOr<Job*> SchedulerImpl::Find(uint64_t job_id) {
  if (const auto it = jobs_.find(job_id); it != jobs_.end()) return it->second.get();
  if (job_id == 0 || job_id >= next_job_)
    return absl::NotFoundError(
        absl::StrFormat("no job %d is known here: ids begin again when node 0's daemon starts "
                        "anew; list the jobs for those that "
                        "exist",
                        job_id));
  return absl::NotFoundError(absl::StrFormat(
      "job %d has ended and is forgotten; the last %d are remembered", job_id, kMaxEnded));
}

void SchedulerImpl::GetJob(const CallContext&, const v1::GetJobRequest& request,
                           Reply<v1::Job> reply) {
  const absl::StatusOr<Job*> job = Find(request.job_id());
  if (!job.ok()) return reply(job.status());
  reply((*job)->record);
}

void SchedulerImpl::CancelJob(const CallContext&, const v1::CancelJobRequest& request,
                              Reply<v1::Job> reply) {
  const absl::StatusOr<Job*> job = Find(request.job_id());
  if (!job.ok()) return reply(job.status());
  Cancel(*job, absl::CancelledError(absl::StrFormat("job %d was cancelled", (*job)->id)));
  reply((*job)->record);
}

void SchedulerImpl::EndSession(const std::string& session_id) {
  if (session_id.empty()) return;
  std::vector<Job*> mine;
  for (const auto* jobs : {&queue_, &launched_}) {
    for (const auto& [key, job] : *jobs) {
      if (job->record.session_id() == session_id) mine.push_back(job);
    }
  }
  for (Job* job : mine) {
    Cancel(job, absl::CancelledError(absl::StrFormat("the session of job %d has ended", job->id)));
  }
}

void SchedulerImpl::Cancel(Job* job, const absl::Status& reason) {
  if (job->ended || !job->end_as.ok()) return;
  // It drains because of its own error, which says more.
  if (!job->first_error.ok() && !job->victim) return;
  job->end_as = WithReason(reason, kReasonCancelled);
  if (job->launch == 0) return End(job, v1::Job::STATE_CANCELLED, job->end_as);
  CancelLaunch(job, job->end_as);
  // Nothing of it will be computed, but the nodes come to it only behind what is before it.
  if (BeforeItOnPlan(*job) != nullptr) Conclude(job, v1::Job::STATE_CANCELLED, job->end_as);
}

void SchedulerImpl::End(Job* job, v1::Job::State state, const absl::Status& error) {
  GiveBack(job, error.ok());
  Conclude(job, state, error);
}

void SchedulerImpl::GiveBack(Job* job, bool c_is_whole) {
  queue_.erase(job->id);
  const uint64_t c = job->spec.tensors[kC];
  if (job->touched_c) catalog_->SetContents(c, c_is_whole);
  if (const auto it = writers_.find(c); it != writers_.end() && --it->second == 0)
    writers_.erase(it);
  for (const auto& [tensor, lease] : std::exchange(job->leases, {})) catalog_->Release(lease);
  if (job->plan != nullptr) plans_.LetGo(std::exchange(job->plan, nullptr));
  RequestPump();
}

void SchedulerImpl::Conclude(Job* job, v1::Job::State state, const absl::Status& error) {
  job->ended = true;
  loop_->Cancel(job->timer);
  *job->record.mutable_end_time() = ToProto(clock_->Now());
  if (!error.ok()) {
    absl::Status named = error;
    if (named.code() == absl::StatusCode::kDeadlineExceeded && ReasonOf(named).empty())
      named = WithReason(named, kReasonDeadline);
    *job->record.mutable_error() = ToProto(named);
  }
  if (const std::string& id = job->record.request_id(); !id.empty())
    requests_.End(id, state, error.code());
  (state == v1::Job::STATE_SUCCEEDED ? succeeded_
   : state == v1::Job::STATE_FAILED  ? failed_
                                     : cancelled_)
      ->Add();
  ended_.push_back(job->id);
  if (ended_.size() > kMaxWithSteps) {
    Job* old = jobs_.at(ended_[ended_.size() - 1 - kMaxWithSteps]).get();
    for (v1::RankReport& rank : *old->record.mutable_ranks()) rank.clear_steps();
  }
  AddEvent(job, state, error.ok() ? "done" : std::string(error.message()));
  AnswerSubmitters(job);
  RequestPump();
}

void SchedulerImpl::Withdraw(Job* job, const absl::Status& error) {
  loop_->Cancel(job->timer);
  GiveBack(job, false);
  if (!job->spec.new_c.empty()) {
    v1::DeleteTensorRequest request;
    request.set_tensor_id(job->spec.tensors[kC]);
    catalog_->DeleteTensor({}, request, [](const absl::StatusOr<v1::DeleteTensorResponse>&) {});
  }
  requests_.Drop(job->record.request_id());
  auto node = jobs_.extract(job->id);
  const std::unique_ptr<Job> gone = std::move(node.mapped());
  for (auto& [number, waiter] : gone->waiters) {
    loop_->Cancel(waiter.timer);
    waiter.wake(error, *gone);
  }
  for (Submitter& submitter : gone->submitters) submitter.reply(error);
}

void SchedulerImpl::TrimHistory() {
  // One that is still launched is needed.
  while (ended_.size() > kMaxEnded && jobs_.at(ended_.front())->launch == 0) {
    jobs_.erase(ended_.front());
    ended_.pop_front();
  }
}

void SchedulerImpl::OnGenerationEnded(const std::vector<int>&, const absl::Status& reason) {
  plans_.Forget();
  part_times_.clear();
  std::vector<Job*> all;
  for (const auto* jobs : {&launched_, &queue_}) {
    for (const auto& [key, job] : *jobs) all.push_back(job);
  }
  launched_.clear();
  for (Job* job : all) {
    job->plan = nullptr;
    // Nobody says any more whether it had begun.
    if (std::exchange(job->launch, 0) != 0) job->touched_c = true;
    if (std::exchange(job->draining, false)) loop_->Cancel(job->drain_timer);
    if (job->ended) {
      GiveBack(job, false);
    } else {
      End(job, v1::Job::STATE_FAILED, reason);
    }
  }
}

void SchedulerImpl::OnReady() { RequestPump(); }

void SchedulerImpl::OnReport(int node, const v1::Report& report) {
  if (report.report_case() == v1::Report::kPlanPrepared) {
    OnPlanPrepared(node, report.plan_prepared());
  } else if (report.report_case() == v1::Report::kLaunchDone) {
    OnLaunchDone(node, report.launch_done());
  }
}

}  // namespace scheduler

std::unique_ptr<Scheduler> Scheduler::Create(const Parts& parts) {
  return std::make_unique<scheduler::SchedulerImpl>(parts);
}

}  // namespace agmm
