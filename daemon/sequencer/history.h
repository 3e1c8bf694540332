// Records of jobs: their events, the callers that wait for them, and the requests that made them.
// Touched on the loop only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "daemon/observe/metrics.h"
#include "daemon/sequencer/job.h"
#include "daemon/sequencer/job_log.h"
#include "daemon/sequencer/journal.h"
#include "daemon/sequencer/members.h"
#include "daemon/sequencer/request_log.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"

namespace agmm::scheduler {

class History {
 public:
  // The value of Waiter::after_event that waits for the end of a job. (0 waits for its admission.)
  static constexpr int64_t kUntilEnd = INT64_MAX;

  // Bounds of the memory for ended jobs. Step times are evicted before records, oldest first.
  struct Bounds {
    int64_t record_bytes = 64 << 20;
    int64_t step_bytes = 64 << 20;
  };

  // Counts the memory for ended jobs as `job_history_bytes`.
  // `journal`, if any, outlives this.
  History(const Members* members, Loop* loop, const Clock* clock, Metrics* metrics, Bounds bounds,
          Journal* journal);

  // Returns the job that the request made before; null for a new request. A job whose record was
  // dropped is returned with its state and end only, valid until the next call. Errors:
  // ALREADY_EXISTS for another body.
  absl::StatusOr<Job*> FindRequest(const v1::SubmitJobRequest& request);
  // Returns true if a request with the id made a job.
  bool Knows(const std::string& request_id) { return requests_.Find(request_id) != nullptr; }
  // Errors: RESOURCE_EXHAUSTED when no further request id can be remembered.
  absl::Status CheckRoom(const v1::SubmitJobRequest& request);
  // Gives the job its id and remembers the request.
  Job* Add(std::unique_ptr<Job> job, const v1::SubmitJobRequest& request);
  // Forgets a job that could not be admitted, and wakes its waiters with `error`.
  void Withdraw(Job* job, const absl::Status& error);

  // Errors: NOT_FOUND, also for a job whose record was dropped.
  absl::StatusOr<Job*> Find(uint64_t job_id);
  // Returns a copy of the record, with the times of steps if they are still kept.
  v1::Job WithSteps(const Job& job) const;
  // Returns a job of an earlier run whose sequencer begins with `run`. Errors: NOT_FOUND;
  // INVALID_ARGUMENT if two runs match.
  absl::StatusOr<v1::Job> FindEarlier(uint64_t job_id, const std::string& run) const;
  v1::ListJobsResponse List(const v1::ListJobsRequest& request) const;

  // Adds an event and wakes its waiters. The first event is the job's admission.
  void AddEvent(Job* job, v1::Job::State state, const std::string& message);
  // Moves the nodes' reports into the record, except reports of ranks that are already there.
  void KeepReports(Job* job);
  // Ends the job for its clients.
  void End(Job* job, v1::Job::State state, const absl::Status& error);
  // Wakes the waiter at its event, at `deadline` with DEADLINE_EXCEEDED, or now.
  void Await(Job* job, Deadline deadline, Waiter waiter);
  // Drops the oldest ended jobs, but no launched one. Invalidates pointers to jobs that have ended.
  void Trim();

 private:
  // Wakes the waiters of the last event, and the waiters of lost callers, which would otherwise
  // pile up when callers repeat their waits.
  void Wake(Job* job);
  // Counts the memory for an ended job, in place of the bytes counted before.
  void Count(Job* job, int64_t record_bytes, int64_t step_bytes);
  void ForgetSteps();

  const Members* const members_;
  Loop* const loop_;
  const Clock* const clock_;
  const Bounds bounds_;
  Journal* const journal_;  // null: none
  Metrics::Counter* const bytes_;
  Metrics::Counter* const submitted_;
  Metrics::Counter* const succeeded_;
  Metrics::Counter* const failed_;
  Metrics::Counter* const cancelled_;
  Metrics::Counter* const slow_;
  Metrics::Counter* const fast_;
  JobLog log_;
  RequestLog requests_;
  std::map<uint64_t, std::unique_ptr<Job>> jobs_;
  std::deque<uint64_t> ended_;     // oldest first
  uint64_t first_with_steps_ = 0;  // jobs with lower ids have no step times
  int64_t record_bytes_ = 0, step_bytes_ = 0;
  Job forgotten_;  // the answer of FindRequest
  uint64_t next_job_ = 1, next_waiter_ = 1;
};

}  // namespace agmm::scheduler
