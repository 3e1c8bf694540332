#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
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

google::protobuf::Timestamp ToTimestamp(absl::Time time) {
  google::protobuf::Timestamp timestamp;
  const int64_t nanos = absl::ToUnixNanos(time);
  timestamp.set_seconds(nanos / 1000000000);
  timestamp.set_nanos(static_cast<int32_t>(nanos % 1000000000));
  return timestamp;
}

SchedulerImpl::SchedulerImpl(Loop* loop, const Clock* clock, Members* members, Placement* placement,
                             Catalog* catalog, Metrics* metrics)
    : loop_(loop),
      clock_(clock),
      members_(members),
      placement_(placement),
      catalog_(catalog),
      plans_(members, placement, metrics),
      submitted_(metrics->counter("jobs_submitted_total")),
      succeeded_(metrics->counter("jobs_succeeded_total")),
      failed_(metrics->counter("jobs_failed_total")),
      cancelled_(metrics->counter("jobs_cancelled_total")) {
  placement_->set_reclaim([this] { return plans_.Reclaim(); });
}

SchedulerImpl::~SchedulerImpl() { placement_->set_reclaim(nullptr); }

void SchedulerImpl::SubmitJob(const CallContext& ctx, const v1::SubmitJobRequest& request,
                              Reply<v1::Job> reply) {
  reply(Submit(ctx, request));
}

absl::StatusOr<v1::Job> SchedulerImpl::Submit(const CallContext& ctx,
                                              const v1::SubmitJobRequest& request) {
  if (const auto known = requests_.find(request.request_id()); known != requests_.end()) {
    const Job& job = *jobs_.at(known->second);
    if (job.request_body == BodyOf(request)) return job.record;
    return absl::AlreadyExistsError(absl::StrFormat(
        "request id %s was used for job %d with another body; use a new id for a new job",
        request.request_id(), job.id));
  }
  AGMM_RETURN_IF_ERROR(members_->Complete());
  if (queue_.size() >= kMaxQueued) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d jobs are queued, the most that are kept; wait for some to end", queue_.size()));
  }
  AGMM_ASSIGN_OR_RETURN(JobSpec spec, Admit(request, *members_, *catalog_, [this](uint64_t tensor) {
                          return writers_.count(tensor) > 0;
                        }));
  PreparedPlan* plan = nullptr;
  if (!plans_.Retiring(spec.plan_key)) {
    AGMM_ASSIGN_OR_RETURN(plan, plans_.Hold(spec));
  }

  auto owned = std::make_unique<Job>();
  Job* job = owned.get();
  job->id = next_job_++;
  job->spec = std::move(spec);
  job->plan = plan;
  job->session = request.session_id();
  job->request_body = BodyOf(request);
  const absl::Time now = clock_->Now();
  job->deadline = now + job->spec.timeout;
  job->record.set_job_id(job->id);
  job->record.set_request_id(request.request_id());
  job->record.set_spec(request.spec());
  *job->record.mutable_mesh() = ToProto(job->spec.problem.mesh);
  for (uint64_t tensor : job->spec.tensors) job->record.add_tensor_ids(tensor);
  *job->record.mutable_options() = ToProto(job->spec.options);
  job->record.set_explanation(job->spec.explanation);
  if (plan != nullptr) job->record.set_plan_hash(plan->hash);
  job->record.set_repeat_count(job->spec.repeat);
  *job->record.mutable_create_time() = ToTimestamp(now);
  job->record.set_owner(ctx.principal);
  job->record.set_generation(members_->generation());
  AddEvent(job, v1::Job::STATE_QUEUED, "admitted");
  jobs_[job->id] = std::move(owned);
  if (!request.request_id().empty()) requests_[request.request_id()] = job->id;
  submitted_->Add();
  Enqueue(job);
  return job->record;
}

absl::StatusOr<Job*> SchedulerImpl::Find(uint64_t job_id) {
  if (const auto it = jobs_.find(job_id); it != jobs_.end()) return it->second.get();
  if (job_id == 0 || job_id >= next_job_)
    return absl::NotFoundError(absl::StrFormat("there was never a job %d", job_id));
  return absl::NotFoundError(absl::StrFormat(
      "job %d has ended and is forgotten; the last %d are remembered", job_id, kMaxEnded));
}

void SchedulerImpl::GetJob(const CallContext&, const v1::GetJobRequest& request,
                           Reply<v1::Job> reply) {
  const absl::StatusOr<Job*> job = Find(request.job_id());
  if (!job.ok()) return reply(job.status());
  reply((*job)->record);
}

void SchedulerImpl::WaitJob(const CallContext& ctx, const v1::WaitJobRequest& request,
                            Reply<v1::Job> reply) {
  const absl::StatusOr<Job*> found = Find(request.job_id());
  if (!found.ok()) return reply(found.status());
  Job* job = *found;
  if (job->ended) return reply(job->record);
  DropGoneWaiters(job);
  const uint64_t number = next_waiter_++;
  Waiter& waiter = job->waiters[number];
  waiter.reply = std::move(reply);
  waiter.cancel = ctx.cancel;
  if (ctx.deadline == absl::InfiniteFuture()) return;
  waiter.timer = loop_->PostAfter(
      std::max(absl::ZeroDuration(), ctx.deadline - clock_->Now()), [this, id = job->id, number] {
        const auto it = jobs_.find(id);
        if (it == jobs_.end()) return;
        auto late = it->second->waiters.extract(number);
        if (late.empty()) return;
        late.mapped().reply(WithReason(absl::DeadlineExceededError(absl::StrFormat(
                                           "job %d is still %s; wait again, or cancel it", id,
                                           it->second->launch == 0 ? "queued" : "running")),
                                       kReasonDeadline));
      });
}

void SchedulerImpl::DropGoneWaiters(Job* job) {
  for (auto it = job->waiters.begin(); it != job->waiters.end();) {
    const absl::Status gone = it->second.cancel->status();
    if (gone.ok()) {
      ++it;
      continue;
    }
    loop_->Cancel(it->second.timer);
    it->second.reply(gone);
    it = job->waiters.erase(it);
  }
}

void SchedulerImpl::CancelJob(const CallContext&, const v1::CancelJobRequest& request,
                              Reply<v1::Job> reply) {
  const absl::StatusOr<Job*> job = Find(request.job_id());
  if (!job.ok()) return reply(job.status());
  Cancel(*job, absl::CancelledError(absl::StrFormat("job %d was cancelled", (*job)->id)));
  reply((*job)->record);
}

void SchedulerImpl::ListJobs(const CallContext&, const v1::ListJobsRequest&,
                             Reply<v1::ListJobsResponse> reply) {
  reply(absl::UnimplementedError("listing is not there yet"));
}

void SchedulerImpl::PollJob(const CallContext&, const v1::PollJobRequest&,
                            Reply<v1::PollJobResponse> reply) {
  reply(absl::UnimplementedError("watching is not there yet"));
}

void SchedulerImpl::EndSession(const std::string& session_id) {
  if (session_id.empty()) return;
  std::vector<Job*> mine;
  for (const auto* jobs : {&queue_, &launched_}) {
    for (const auto& [key, job] : *jobs) {
      if (job->session == session_id) mine.push_back(job);
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
  if (job->launch == 0) {
    End(job, v1::Job::STATE_CANCELLED, job->end_as);
  } else {
    CancelLaunch(*job, job->end_as);
  }
}

void SchedulerImpl::AddEvent(Job* job, v1::Job::State state, const std::string& message) {
  job->record.set_state(state);
  v1::JobEvent* event = job->record.add_events();
  event->set_number(job->record.events_size());
  event->set_state(state);
  *event->mutable_time() = ToTimestamp(clock_->Now());
  event->set_message(message);
}

void SchedulerImpl::End(Job* job, v1::Job::State state, const absl::Status& error) {
  job->ended = true;
  queue_.erase(job->id);
  loop_->Cancel(job->timer);
  *job->record.mutable_end_time() = ToTimestamp(clock_->Now());
  if (!error.ok()) {
    absl::Status named = error;
    if (named.code() == absl::StatusCode::kDeadlineExceeded && ReasonOf(named).empty())
      named = WithReason(named, kReasonDeadline);
    *job->record.mutable_error() = ToProto(named);
  }
  AddEvent(job, state, error.ok() ? "done" : std::string(error.message()));
  (state == v1::Job::STATE_SUCCEEDED ? succeeded_
   : state == v1::Job::STATE_FAILED  ? failed_
                                     : cancelled_)
      ->Add();

  const uint64_t c = job->spec.tensors[kC];
  if (job->touched_c) catalog_->SetContents(c, error.ok());
  if (const auto it = writers_.find(c); it != writers_.end() && --it->second == 0)
    writers_.erase(it);
  for (const auto& [tensor, lease] : std::exchange(job->leases, {})) catalog_->Release(lease);
  if (job->plan != nullptr) plans_.LetGo(std::exchange(job->plan, nullptr));

  ended_.push_back(job->id);
  if (ended_.size() > kMaxWithSteps) {
    Job* old = jobs_.at(ended_[ended_.size() - 1 - kMaxWithSteps]).get();
    for (v1::RankReport& rank : *old->record.mutable_ranks()) rank.clear_steps();
  }
  for (auto& [number, waiter] : std::exchange(job->waiters, {})) {
    loop_->Cancel(waiter.timer);
    waiter.reply(job->record);
  }
  RequestPump();
}

void SchedulerImpl::TrimHistory() {
  while (ended_.size() > kMaxEnded) {
    const auto it = jobs_.find(ended_.front());
    ended_.pop_front();
    if (const std::string& id = it->second->record.request_id(); !id.empty()) requests_.erase(id);
    jobs_.erase(it);
  }
}

void SchedulerImpl::OnGenerationEnded(const std::vector<int>&, const absl::Status& reason) {
  plans_.Forget();
  std::vector<Job*> all;
  for (const auto* jobs : {&launched_, &queue_}) {
    for (const auto& [key, job] : *jobs) all.push_back(job);
  }
  launched_.clear();
  for (Job* job : all) {
    job->plan = nullptr;
    job->launch = 0;
    End(job, v1::Job::STATE_FAILED, reason);
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

std::unique_ptr<Scheduler> Scheduler::Create(Loop* loop, const Clock* clock, Members* members,
                                             Placement* placement, Catalog* catalog,
                                             Metrics* metrics) {
  return std::make_unique<scheduler::SchedulerImpl>(loop, clock, members, placement, catalog,
                                                    metrics);
}

}  // namespace agmm
