// What clients wait for, and what they look through.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/job/scheduler_impl.h"
#include "kernels/base/status.h"
#include "proto/convert/status.h"

namespace agmm::scheduler {
namespace {

constexpr int kDefaultPage = 100, kMaxPage = 1000;

// Without what only those want who ask for the one job.
v1::Job WithoutStepTimes(v1::Job job) {
  for (v1::RankReport& rank : *job.mutable_ranks()) rank.clear_steps();
  return job;
}

// For who runs many: without ranks and events, which are most of a record and are not copied here.
v1::Job WithoutRanks(v1::Job* record) {
  v1::Job most;
  most.mutable_ranks()->Swap(record->mutable_ranks());
  most.mutable_events()->Swap(record->mutable_events());
  v1::Job job = *record;
  record->mutable_ranks()->Swap(most.mutable_ranks());
  record->mutable_events()->Swap(most.mutable_events());
  return job;
}

// As an entry of a list.
v1::Job WithoutTimes(v1::Job job) {
  for (v1::RankReport& rank : *job.mutable_ranks()) {
    rank.clear_steps();
    rank.clear_epoch_us();
  }
  return job;
}

}  // namespace

void SchedulerImpl::WaitJob(const CallContext& ctx, const v1::WaitJobRequest& request,
                            Reply<v1::Job> reply) {
  const absl::StatusOr<Job*> job = Find(request.job_id());
  if (!job.ok()) return reply(job.status());
  Waiter waiter;
  waiter.after_event = kUntilEnd;
  waiter.wake = [reply = std::move(reply)](const absl::Status& status, const Job& job) {
    status.ok() ? reply(job.record) : reply(status);
  };
  waiter.cancel = ctx.cancel;
  Await(ctx.deadline, *job, std::move(waiter));
}

void SchedulerImpl::AnswerSubmitter(Job* job, Submitter submitter) {
  if (!submitter.runs) return submitter.reply(job->record);
  Waiter waiter;
  waiter.after_event = kUntilEnd;
  waiter.cancel = std::move(submitter.cancel);
  waiter.wake = [reply = std::move(submitter.reply)](const absl::Status& status, Job& job) {
    status.ok() ? reply(WithoutRanks(&job.record)) : reply(status);
  };
  Await(absl::InfiniteFuture(), job, std::move(waiter));
}

void SchedulerImpl::PollJob(const CallContext& ctx, const v1::PollJobRequest& request,
                            Reply<v1::PollJobResponse> reply) {
  const absl::StatusOr<Job*> job = Find(request.job_id());
  if (!job.ok()) return reply(job.status());
  Waiter waiter;
  waiter.after_event = std::max<int64_t>(request.after_event(), 0);
  waiter.wake = [reply = std::move(reply), after = waiter.after_event](const absl::Status& status,
                                                                       const Job& job) {
    if (!status.ok()) return reply(status);
    v1::PollJobResponse response;
    response.set_sequencer(job.record.sequencer());
    for (const v1::JobEvent& event : job.record.events())
      if (event.number() > after) *response.add_events() = event;
    if (job.ended) *response.mutable_job() = WithoutStepTimes(job.record);
    reply(std::move(response));
  };
  waiter.cancel = ctx.cancel;
  Await(ctx.deadline, *job, std::move(waiter));
}

void SchedulerImpl::Await(absl::Time deadline, Job* job, Waiter waiter) {
  if (job->ended || job->record.events_size() > waiter.after_event)
    return waiter.wake(absl::OkStatus(), *job);
  if (job->waiters.size() >= job->look_for_gone_at) {
    DropGoneWaiters(job);
    job->look_for_gone_at = 2 * job->waiters.size();
  }
  const uint64_t number = next_waiter_++;
  if (deadline != absl::InfiniteFuture()) {
    waiter.timer = loop_->PostAfter(
        std::max(absl::ZeroDuration(), deadline - clock_->Now()), [this, id = job->id, number] {
          const auto it = jobs_.find(id);
          if (it == jobs_.end()) return;
          const auto late = it->second->waiters.extract(number);
          if (late.empty()) return;
          // Without a reason: DEADLINE is the job's own.
          late.mapped().wake(absl::DeadlineExceededError(
                                 absl::StrFormat("job %d is still %s; wait again, or cancel it", id,
                                                 it->second->launch == 0 ? "queued" : "running")),
                             *it->second);
        });
  }
  job->waiters.emplace(number, std::move(waiter));
}

void SchedulerImpl::DropGoneWaiters(Job* job) {
  for (auto it = job->waiters.begin(); it != job->waiters.end();) {
    const absl::Status gone = it->second.cancel->status();
    if (gone.ok()) {
      ++it;
      continue;
    }
    loop_->Cancel(it->second.timer);
    it->second.wake(gone, *job);
    it = job->waiters.erase(it);
  }
}

void SchedulerImpl::AddEvent(Job* job, v1::Job::State state, const std::string& message) {
  job->record.set_state(state);
  v1::JobEvent* event = job->record.add_events();
  event->set_number(job->record.events_size());
  event->set_state(state);
  *event->mutable_time() = ToProto(clock_->Now());
  event->set_message(message);
  for (auto it = job->waiters.begin(); it != job->waiters.end();) {
    if (!job->ended && job->record.events_size() <= it->second.after_event) {
      ++it;
      continue;
    }
    loop_->Cancel(it->second.timer);
    it->second.wake(absl::OkStatus(), *job);
    it = job->waiters.erase(it);
  }
}

void SchedulerImpl::ListJobs(const CallContext&, const v1::ListJobsRequest& request,
                             Reply<v1::ListJobsResponse> reply) {
  const int size =
      request.page_size() <= 0 ? kDefaultPage : std::min(request.page_size(), kMaxPage);
  v1::ListJobsResponse response;
  auto it = request.before_job_id() == 0 ? jobs_.end() : jobs_.lower_bound(request.before_job_id());
  while (it != jobs_.begin() && response.jobs_size() < size) {
    --it;
    v1::Job* job = response.add_jobs();
    *job = WithoutTimes(it->second->record);
    job->clear_events();
  }
  if (it != jobs_.begin()) response.set_next_before_job_id(it->first);
  reply(std::move(response));
}

}  // namespace agmm::scheduler
