#include "daemon/sequencer/history.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/reason.h"
#include "proto/convert/rpc_status.h"
#include "proto/convert/time.h"
#include "proto/limits.h"

namespace agmm::scheduler {
namespace {

constexpr size_t kMaxEnded = 1000;
// Ended jobs that still have the times of their steps, which are most of a record.
constexpr size_t kMaxWithSteps = 64;

// The part of a request that must be equal for its id to name the same job.
std::string BodyOf(v1::SubmitJobRequest request) {
  request.clear_session_id();
  return request.SerializeAsString();
}

// A copy of the record without events, steps and the times of epochs. They are swapped out of the
// way, because to copy those of many jobs would hold up the loop.
v1::Job Summary(v1::Job* record) {
  v1::Job aside;
  aside.mutable_events()->Swap(record->mutable_events());
  for (v1::RankReport& rank : *record->mutable_ranks()) {
    v1::RankReport* most = aside.add_ranks();
    most->mutable_steps()->Swap(rank.mutable_steps());
    most->mutable_epoch_us()->Swap(rank.mutable_epoch_us());
  }
  v1::Job summary = *record;
  record->mutable_events()->Swap(aside.mutable_events());
  for (int i = 0; i < record->ranks_size(); ++i) {
    record->mutable_ranks(i)->mutable_steps()->Swap(aside.mutable_ranks(i)->mutable_steps());
    record->mutable_ranks(i)->mutable_epoch_us()->Swap(aside.mutable_ranks(i)->mutable_epoch_us());
  }
  return summary;
}

}  // namespace

History::History(const Members* members, Loop* loop, const Clock* clock, Metrics* metrics)
    : members_(members),
      loop_(loop),
      clock_(clock),
      submitted_(metrics->counter("jobs_submitted_total")),
      succeeded_(metrics->counter("jobs_succeeded_total")),
      failed_(metrics->counter("jobs_failed_total")),
      cancelled_(metrics->counter("jobs_cancelled_total")),
      log_(loop, clock),
      requests_(clock) {}

absl::StatusOr<Job*> History::FindRequest(const v1::SubmitJobRequest& request) {
  if (request.request_id().empty()) return nullptr;
  const RequestLog::Entry* entry = requests_.Find(request.request_id());
  if (entry == nullptr) return nullptr;
  if (!RequestLog::Same(*entry, BodyOf(request))) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "request id %s was used for job %d with another body; use a new id for a new job",
        request.request_id(), entry->job_id));
  }
  if (const auto it = jobs_.find(entry->job_id); it != jobs_.end()) return it->second.get();
  forgotten_ = Job();
  forgotten_.ended = true;
  v1::Job& record = forgotten_.record;
  record.set_job_id(entry->job_id);
  record.set_sequencer(members_->incarnation());
  record.set_request_id(request.request_id());
  record.set_state(entry->state);
  *record.mutable_end_time() = ToProto(entry->end);
  record.set_explanation(
      absl::StrFormat("the details are forgotten, because %d later jobs have ended", kMaxEnded));
  if (entry->code != absl::StatusCode::kOk) {
    record.mutable_error()->set_code(static_cast<int>(entry->code));
    record.mutable_error()->set_message("the message is forgotten");
  }
  return &forgotten_;
}

absl::Status History::CheckRoom(const v1::SubmitJobRequest& request) {
  return request.request_id().empty() ? absl::OkStatus() : requests_.CheckRoom();
}

Job* History::Add(std::unique_ptr<Job> job, const v1::SubmitJobRequest& request) {
  job->id = next_job_++;
  job->record.set_job_id(job->id);
  job->record.set_sequencer(members_->incarnation());
  job->record.set_request_id(request.request_id());
  *job->record.mutable_create_time() = ToProto(clock_->Now());
  job->record.set_state(v1::Job::STATE_QUEUED);
  if (!request.request_id().empty())
    requests_.Add(request.request_id(), BodyOf(request), job->id, job->spec.timeout);
  return (jobs_[job->id] = std::move(job)).get();
}

void History::Withdraw(Job* job, const absl::Status& error) {
  requests_.Drop(job->record.request_id());
  const auto node = jobs_.extract(job->id);
  for (auto& [number, waiter] : job->waiters) {
    loop_->Cancel(waiter.timer);
    waiter.wake(error, *job);
  }
}

absl::StatusOr<Job*> History::Find(uint64_t job_id) {
  if (const auto it = jobs_.find(job_id); it != jobs_.end()) return it->second.get();
  if (job_id == 0 || job_id >= next_job_) {
    return absl::NotFoundError(
        absl::StrFormat("job %d does not exist; job ids start again at 1 when node 0's daemon "
                        "restarts; list the existing jobs",
                        job_id));
  }
  return absl::NotFoundError(
      absl::StrFormat("job %d has ended and is forgotten; the last %d ended jobs are remembered",
                      job_id, kMaxEnded));
}

v1::ListJobsResponse History::List(const v1::ListJobsRequest& request) const {
  const int size = request.page_size() > 0 ? request.page_size() : kDefaultPage;
  v1::ListJobsResponse response;
  auto it = request.before_job_id() == 0 ? jobs_.end() : jobs_.lower_bound(request.before_job_id());
  while (it != jobs_.begin() && response.jobs_size() < size) {
    --it;
    *response.add_jobs() = Summary(&it->second->record);
  }
  if (it != jobs_.begin()) response.set_next_before_job_id(it->first);
  return response;
}

void History::AddEvent(Job* job, v1::Job::State state, const std::string& message) {
  if (job->record.events_size() == 0) submitted_->Add();
  job->record.set_state(state);
  v1::JobEvent* event = job->record.add_events();
  event->set_number(job->record.events_size());
  event->set_state(state);
  *event->mutable_time() = ToProto(clock_->Now());
  event->set_message(message);
  log_.OnEvent(*job, message);
  Wake(job);
}

void History::End(Job* job, v1::Job::State state, const absl::Status& error) {
  job->ended = true;
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
  log_.OnEnd(*job, state, error);
  ended_.push_back(job->id);
  if (ended_.size() > kMaxWithSteps) {
    Job* old = jobs_.at(ended_[ended_.size() - 1 - kMaxWithSteps]).get();
    for (v1::RankReport& rank : *old->record.mutable_ranks()) rank.clear_steps();
  }
  AddEvent(job, state, error.ok() ? "done" : std::string(error.message()));
}

void History::Await(Job* job, Deadline deadline, Waiter waiter) {
  if (job->ended || job->record.events_size() > waiter.after_event)
    return waiter.wake(absl::OkStatus(), *job);
  if (job->waiters.size() >= job->prune_waiters_at) {
    Wake(job);
    job->prune_waiters_at = 2 * job->waiters.size();
  }
  const uint64_t number = next_waiter_++;
  if (deadline != Deadline::Infinite()) {
    waiter.timer = loop_->PostAfter(
        std::max(absl::ZeroDuration(), deadline.Left(clock_->Nanos())),
        [this, id = job->id, number] {
          const auto it = jobs_.find(id);
          if (it == jobs_.end()) return;
          Job& job = *it->second;
          const auto late = job.waiters.extract(number);
          if (late.empty()) return;
          // Without a reason, because DEADLINE is the job's own.
          late.mapped().wake(
              absl::DeadlineExceededError(absl::StrFormat(
                  "job %d is still %s; wait again, or cancel it", id,
                  job.record.state() == v1::Job::STATE_RUNNING ? "running" : "queued")),
              job);
        });
  }
  job->waiters.emplace(number, std::move(waiter));
}

void History::Wake(Job* job) {
  // Taken out first, because a waiter may wait again at once.
  std::vector<std::pair<Waiter, absl::Status>> over;
  for (auto it = job->waiters.begin(); it != job->waiters.end();) {
    Waiter& waiter = it->second;
    const bool due = job->ended || job->record.events_size() > waiter.after_event;
    const absl::Status status = due ? absl::OkStatus() : waiter.cancel->status();
    if (!due && status.ok()) {
      ++it;
      continue;
    }
    over.emplace_back(std::move(waiter), status);
    it = job->waiters.erase(it);
  }
  for (auto& [waiter, status] : over) {
    loop_->Cancel(waiter.timer);
    waiter.wake(status, *job);
  }
}

void History::Trim() {
  // A job that is still launched is needed.
  while (ended_.size() > kMaxEnded && jobs_.at(ended_.front())->launch == 0) {
    jobs_.erase(ended_.front());
    ended_.pop_front();
  }
}

}  // namespace agmm::scheduler
