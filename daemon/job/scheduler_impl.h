// The scheduler's state. What clients ask is in scheduler.cc, the queue in scheduler_queue.cc, what
// is launched in scheduler_launch.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/job/admission.h"
#include "daemon/job/plan_cache.h"
#include "daemon/job/scheduler.h"

namespace agmm::scheduler {

inline constexpr size_t kMaxLaunched = 64;
// A job is launched behind so many epochs of its plan at most.
inline constexpr int64_t kMaxEpochsAhead = 4;
inline constexpr size_t kMaxQueued = 10000;
inline constexpr size_t kMaxEnded = 1000;
// Ended jobs that still have the times of their steps, which are most of a record.
inline constexpr size_t kMaxWithSteps = 64;
// How long after its deadline a launched job is ended from here: its nodes notice the deadline
// themselves, and can say who waited for whom.
inline constexpr absl::Duration kDeadlineGrace = absl::Milliseconds(250);

struct Waiter {
  Reply<v1::Job> reply;
  Loop::Timer timer;
  std::shared_ptr<CancelToken> cancel;
};

struct Job {
  uint64_t id = 0;
  JobSpec spec;
  v1::Job record;
  std::string session, request_body;
  absl::Time deadline;
  Loop::Timer timer;
  bool ended = false;

  // While queued.
  std::map<uint64_t, uint64_t> leases;  // by tensor
  int leases_awaited = 0;
  absl::Status lease_error;      // its world has ended
  PreparedPlan* plan = nullptr;  // null: not held, because one like it is just being retired
  bool touched_c = false;        // launched once: C is not what it was

  // While launched.
  uint64_t launch = 0;       // rises in launch order; 0: queued
  std::set<int> reporting;   // nodes that have not reported LaunchDone
  absl::Status first_error;  // reported
  absl::Status end_as;       // what a cancel wants it to end as
  bool victim = false;       // a launch before it spoiled the plan
  std::map<int, v1::RankReport> reports;

  std::map<uint64_t, Waiter> waiters;
};

google::protobuf::Timestamp ToTimestamp(absl::Time time);

class SchedulerImpl : public Scheduler {
 public:
  SchedulerImpl(Loop* loop, const Clock* clock, Members* members, Placement* placement,
                Catalog* catalog, Metrics* metrics);
  ~SchedulerImpl() override;

  void SubmitJob(const CallContext& ctx, const v1::SubmitJobRequest& request,
                 Reply<v1::Job> reply) override;
  void GetJob(const CallContext&, const v1::GetJobRequest& request, Reply<v1::Job> reply) override;
  void WaitJob(const CallContext& ctx, const v1::WaitJobRequest& request,
               Reply<v1::Job> reply) override;
  void CancelJob(const CallContext&, const v1::CancelJobRequest& request,
                 Reply<v1::Job> reply) override;
  void ListJobs(const CallContext&, const v1::ListJobsRequest& request,
                Reply<v1::ListJobsResponse> reply) override;
  void PollJob(const CallContext& ctx, const v1::PollJobRequest& request,
               Reply<v1::PollJobResponse> reply) override;
  void EndSession(const std::string& session_id) override;

  void OnGenerationEnded(const std::vector<int>& lost_nodes, const absl::Status& reason) override;
  void OnReady() override;
  void OnReport(int node, const v1::Report& report) override;

 private:
  // Clients (scheduler.cc).
  absl::StatusOr<v1::Job> Submit(const CallContext& ctx, const v1::SubmitJobRequest& request);
  absl::StatusOr<Job*> Find(uint64_t job_id);
  // Callers that repeat their waits leave no trail of old ones.
  void DropGoneWaiters(Job* job);
  void Cancel(Job* job, const absl::Status& reason);
  // Ends a job that is not launched (any more) on any node: gives back what it holds and tells who
  // waits.
  void End(Job* job, v1::Job::State state, const absl::Status& error);
  void AddEvent(Job* job, v1::Job::State state, const std::string& message);
  void TrimHistory();

  // The queue (scheduler_queue.cc).
  void Enqueue(Job* job);
  void HoldPlans();
  // Pump runs soon, and not inside whoever calls.
  void RequestPump();
  // Launches what can be launched, in order on each rank.
  void Pump();
  // A launched job that has to end before `job` is launched, or null.
  const Job* InTheWayOf(const Job& job) const;
  void OnDeadline(uint64_t job_id);
  std::string WhatItWaitsFor(const Job& job) const;
  void OnPlanPrepared(int node, const v1::PlanPrepared& prepared);

  // What is launched (scheduler_launch.cc).
  void Launch(Job* job);
  void OnLaunchDone(int node, const v1::LaunchDone& done);
  // Keeps the first error, has the others drain, and takes the plan out of use.
  void OnLaunchError(Job* job, int node, const absl::Status& error);
  void CancelLaunch(const Job& job, const absl::Status& reason);
  void FinishLaunch(Job* job);
  void PutBack(Job* job);

  Loop* const loop_;
  const Clock* const clock_;
  Members* const members_;
  Placement* const placement_;
  Catalog* const catalog_;
  PlanCache plans_;
  Metrics::Counter* const submitted_;
  Metrics::Counter* const succeeded_;
  Metrics::Counter* const failed_;
  Metrics::Counter* const cancelled_;

  std::map<uint64_t, std::unique_ptr<Job>> jobs_;
  std::map<std::string, uint64_t> requests_;
  std::map<uint64_t, Job*> queue_;     // by id: admission order
  std::map<uint64_t, Job*> launched_;  // by launch
  std::map<uint64_t, int> writers_;    // tensor -> jobs not ended that write it
  std::deque<uint64_t> ended_;         // oldest first
  bool pump_requested_ = false;
  bool plans_missing_ = false;  // a queued job holds no plan
  uint64_t next_job_ = 1, next_launch_ = 1, next_waiter_ = 1;
};

}  // namespace agmm::scheduler
