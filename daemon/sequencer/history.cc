#include "daemon/sequencer/history.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "kernels/base/reason.h"
#include "kernels/base/units.h"
#include "proto/convert/rpc_status.h"
#include "proto/convert/time.h"
#include "proto/limits.h"

namespace agmm::scheduler {
namespace {

constexpr size_t kMaxEnded = 1000;
// At this size a page of a list is full: half of the bytes that a message can carry.
constexpr size_t kFullPageBytes = 4 << 20;

// A job that takes more than this many times its prediction is called slow, and one that takes less
// than the prediction divided by this is called fast.
constexpr double kFar = 2;
// Fixed costs dominate shorter predictions, and these are not known well enough to call a job fast.
constexpr double kMinFastUs = 1000;

// Returns T divided by the predicted T; 0 if they cannot be compared. A first epoch packs operands
// and warms caches, so it is not compared.
double RatioOf(const Job& job) {
  const double predicted_us = job.record.predicted_us();
  return job.warm && predicted_us > 0 ? job.record.figures().time_us() / predicted_us : 0;
}

bool IsSlow(const Job& job) { return RatioOf(job) > kFar; }
bool IsFast(const Job& job) {
  const double ratio = RatioOf(job);
  return ratio > 0 && ratio < 1 / kFar && job.record.predicted_us() >= kMinFastUs;
}

std::string SlowText(const v1::Job& record) {
  return absl::StrFormat(
      "done, but T is %s, over twice the predicted %s; if the world has changed, measure "
      "it again",
      FormatMicros(record.figures().time_us()), FormatMicros(record.predicted_us()));
}

std::string FastText(const Job& job) {
  return absl::StrFormat(
      "done, but T is %s, %.2g of the predicted %s; if the world has changed, measure it again",
      FormatMicros(job.record.figures().time_us()), RatioOf(job),
      FormatMicros(job.record.predicted_us()));
}

// Returns the part of a request that must be equal for its id to name the same job.
std::string BodyOf(v1::SubmitJobRequest request) {
  request.clear_session_id();
  return request.SerializeAsString();
}

// Returns a copy of the record without events, the times of epochs and, in a list, the progress of
// ranks. These are moved aside during the copy, because copying them for many jobs would delay the
// loop.
v1::Job Summary(v1::Job* record, bool in_list) {
  v1::Job aside;
  const auto swap = [&] {
    aside.mutable_events()->Swap(record->mutable_events());
    for (int i = 0; i < record->ranks_size(); ++i) {
      v1::RankReport* rank = record->mutable_ranks(i);
      v1::RankReport* kept = aside.mutable_ranks(i);
      rank->mutable_epoch_us()->Swap(kept->mutable_epoch_us());
      if (!in_list) continue;
      v1::RankProgress* progress = rank->release_progress();
      rank->set_allocated_progress(kept->release_progress());
      kept->set_allocated_progress(progress);
    }
  };
  for (int i = 0; i < record->ranks_size(); ++i) aside.add_ranks();
  swap();
  v1::Job summary = *record;
  swap();
  return summary;
}

// Returns the memory for an ended job without its step times, accurate to a quarter: its texts and
// numbers, and the objects around them.
int64_t RecordBytesOf(const Job& job) {
  constexpr int64_t kJob = 3500, kRank = 250, kEvent = 150, kLane = 500, kOperand = 250;
  int64_t lanes = 0;
  for (const v1::RankReport& rank : job.record.ranks()) lanes += rank.progress().lanes_size();
  return kJob + kLane * lanes + kRank * job.record.ranks_size() +
         kOperand * job.record.operands_size() + kEvent * job.record.events_size() +
         static_cast<int64_t>(job.record.ByteSizeLong());
}

}  // namespace

History::History(const Members* members, Loop* loop, const Clock* clock, Metrics* metrics,
                 Bounds bounds, Journal* journal)
    : members_(members),
      loop_(loop),
      clock_(clock),
      bounds_(bounds),
      journal_(journal),
      bytes_(metrics->counter("job_history_bytes")),
      submitted_(metrics->counter("jobs_submitted_total")),
      succeeded_(metrics->counter("jobs_succeeded_total")),
      failed_(metrics->counter("jobs_failed_total")),
      cancelled_(metrics->counter("jobs_cancelled_total")),
      slow_(metrics->counter("jobs_slower_than_predicted_total")),
      fast_(metrics->counter("jobs_faster_than_predicted_total")),
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
  record.set_explanation(absl::StrFormat(
      "the details are forgotten, because up to %d later jobs have ended", kMaxEnded));
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
      absl::StrFormat("job %d has ended and is forgotten; node 0 remembers the last %d ended jobs, "
                      "or as many as fit into %s",
                      job_id, kMaxEnded, FormatBytes(bounds_.record_bytes)));
}

v1::Job History::WithSteps(const Job& job) const {
  v1::Job whole = job.record;
  for (v1::RankReport& rank : *whole.mutable_ranks()) {
    const auto it = job.step_times.find(rank.rank());
    if (it == job.step_times.end()) continue;
    for (const auto& [start_us, end_us] : it->second) {
      v1::StepTime* step = rank.add_steps();
      step->set_start_us(start_us);
      step->set_end_us(end_us);
    }
  }
  return whole;
}

v1::ListJobsResponse History::List(const v1::ListJobsRequest& request) const {
  const int size = request.page_size() > 0 ? request.page_size() : kDefaultPage;
  v1::ListJobsResponse response;
  auto it = request.before_job_id() == 0 ? jobs_.end() : jobs_.lower_bound(request.before_job_id());
  size_t bytes = 0;
  const auto add = [&bytes](v1::Job job, google::protobuf::RepeatedPtrField<v1::Job>* jobs) {
    bytes += job.ByteSizeLong();
    *jobs->Add() = std::move(job);
  };
  while (it != jobs_.begin() && response.jobs_size() < size && bytes < kFullPageBytes)
    add(Summary(&(--it)->second->record, /*in_list=*/true), response.mutable_jobs());
  if (it != jobs_.begin()) {
    response.set_next_before_job_id(it->first);
  } else if (request.earlier_runs() && journal_ != nullptr) {
    std::vector<v1::Job>& earlier = journal_->earlier();
    for (auto job = earlier.rbegin(); job != earlier.rend() && bytes < kFullPageBytes &&
                                      size > response.jobs_size() + response.earlier_jobs_size();
         ++job)
      add(Summary(&*job, /*in_list=*/true), response.mutable_earlier_jobs());
  }
  return response;
}

absl::StatusOr<v1::Job> History::FindEarlier(uint64_t job_id, const std::string& run) const {
  const v1::Job* found = nullptr;
  if (journal_ != nullptr) {
    for (const v1::Job& job : journal_->earlier()) {
      if (job.job_id() != job_id || !absl::StartsWith(job.sequencer(), run)) continue;
      if (found != nullptr && found->sequencer() != job.sequencer()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "job %d@%s is ambiguous: runs %s and %s both match; add more digits of the "
            "run",
            job_id, run, found->sequencer(), job.sequencer()));
      }
      found = &job;
    }
  }
  if (found != nullptr) return *found;
  return absl::NotFoundError(absl::StrFormat(
      "job %d@%s is not among the jobs of earlier runs that node 0's journal has; list them with "
      "the other jobs",
      job_id, run));
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

void History::KeepReports(Job* job) {
  int64_t step_bytes = job->step_bytes;
  std::set<int> kept;
  for (const v1::RankReport& report : job->record.ranks()) kept.insert(report.rank());
  for (auto& [rank, report] : std::exchange(job->reports, {})) {
    if (kept.count(rank) > 0) continue;
    // Swapped out, because to clear a repeated field keeps its messages.
    google::protobuf::RepeatedPtrField<v1::StepTime> steps;
    steps.Swap(report.mutable_steps());
    *job->record.add_ranks() = std::move(report);
    if (steps.empty()) continue;
    StepTimes& times = job->step_times[rank];
    times.reserve(steps.size());
    for (const v1::StepTime& step : steps)
      times.emplace_back(static_cast<float>(step.start_us()), static_cast<float>(step.end_us()));
    step_bytes += static_cast<int64_t>(times.capacity() * sizeof(times[0]));
  }
  if (step_bytes > job->step_bytes) first_with_steps_ = std::min(first_with_steps_, job->id);
  Count(job, job->ended ? RecordBytesOf(*job) : 0, step_bytes);
  ForgetSteps();
}

void History::Count(Job* job, int64_t record_bytes, int64_t step_bytes) {
  const int64_t records = record_bytes - job->record_bytes, steps = step_bytes - job->step_bytes;
  record_bytes_ += records;
  step_bytes_ += steps;
  bytes_->Add(records + steps);
  job->record_bytes = record_bytes;
  job->step_bytes = step_bytes;
}

void History::ForgetSteps() {
  auto it = jobs_.lower_bound(first_with_steps_);
  for (; step_bytes_ > bounds_.step_bytes && it != jobs_.end(); ++it) {
    it->second->step_times.clear();
    Count(it->second.get(), it->second->record_bytes, 0);
    first_with_steps_ = it->first + 1;
  }
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
  const bool succeeded = state == v1::Job::STATE_SUCCEEDED;
  const bool slow = succeeded && IsSlow(*job), fast = succeeded && IsFast(*job);
  if (slow) slow_->Add();
  if (fast) fast_->Add();
  log_.OnEnd(*job, state, error);
  ended_.push_back(job->id);
  KeepReports(job);
  AddEvent(job, state,
           slow         ? SlowText(job->record)
           : fast       ? FastText(*job)
           : error.ok() ? "done"
                        : std::string(error.message()));
  if (journal_ == nullptr || !journal_->HasRoom(error.ok(), clock_->Nanos())) return;
  v1::Job ended = Summary(&job->record, /*in_list=*/false);
  *ended.mutable_events() = job->record.events();
  journal_->Add(std::move(ended));
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
    const absl::Duration timeout = std::max(absl::ZeroDuration(), deadline.Left(clock_->Nanos()));
    waiter.timer = loop_->PostAfter(timeout, [this, id = job->id, number, timeout] {
      const auto it = jobs_.find(id);
      if (it == jobs_.end()) return;
      Job& job = *it->second;
      const auto late = job.waiters.extract(number);
      if (late.empty()) return;
      // Has no reason, because DEADLINE stands for the job's own deadline.
      late.mapped().wake(absl::DeadlineExceededError(absl::StrFormat(
                             "job %d is still %s after a wait of %s; wait again, or cancel it", id,
                             job.record.state() == v1::Job::STATE_RUNNING ? "running" : "queued",
                             absl::FormatDuration(absl::Trunc(timeout, absl::Milliseconds(1))))),
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
  for (auto it = ended_.begin();
       it != ended_.end() && (ended_.size() > kMaxEnded || record_bytes_ > bounds_.record_bytes);) {
    Job* job = jobs_.at(*it).get();
    if (job->launch != 0) {
      ++it;
      continue;
    }
    Count(job, 0, 0);
    jobs_.erase(job->id);
    it = ended_.erase(it);
  }
}

}  // namespace agmm::scheduler
