// The scheduler's state. Submission and ends are in scheduler.cc, what clients wait for in
// scheduler_watch.cc, the queue in scheduler_queue.cc, what is launched in scheduler_launch.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "daemon/job/admission.h"
#include "daemon/job/figures.h"
#include "daemon/job/plan_cache.h"
#include "daemon/job/request_log.h"
#include "daemon/job/scheduler.h"
#include "daemon/job/workspaces.h"
#include "proto/convert/time.h"

namespace agmm::scheduler {

inline constexpr size_t kMaxLaunched = 64;
// A job is launched behind so many epochs of its plan at most.
inline constexpr int64_t kMaxEpochsAhead = 4;
// Of launched jobs on the same ranks: one is in use, the other is for the launch ahead.
inline constexpr size_t kMaxWorkspaces = 2;
inline constexpr size_t kMaxQueued = 10000;
inline constexpr size_t kMaxEnded = 1000;
// Ended jobs that still have the times of their steps, which are most of a record.
inline constexpr size_t kMaxWithSteps = 64;
// How long after its deadline a launched job is ended from here: its nodes notice the deadline
// themselves, and can say who waited for whom.
inline constexpr absl::Duration kDeadlineGrace = absl::Milliseconds(250);

// Problems whose T_gemm and T_ag are remembered.
inline constexpr size_t kMaxPartTimes = 4096;

struct Job;

// Waits for an event behind `after_event`, or for the job's end.
struct Waiter {
  int64_t after_event = 0;
  std::function<void(const absl::Status&, Job&)> wake;
  Loop::Timer timer;
  std::shared_ptr<CancelToken> cancel;
};
inline constexpr int64_t kUntilEnd = std::numeric_limits<int64_t>::max();

// Who submitted a job; who runs it hears only of its end.
struct Submitter {
  Reply<v1::Job> reply;
  bool runs = false;
  std::shared_ptr<CancelToken> cancel;
};

struct Job {
  uint64_t id = 0;
  JobSpec spec;
  v1::Job record;
  std::vector<Submitter> submitters;  // to be answered once its plan is made
  absl::Time deadline;
  Loop::Timer timer;
  // For its clients. One that was launched behind others on its plan may still be launched: its
  // memory is its own until all nodes have reported.
  bool ended = false;

  // While queued.
  std::map<uint64_t, uint64_t> leases;  // by tensor
  int leases_awaited = 0;
  absl::Status lease_error;      // its world has ended
  PreparedPlan* plan = nullptr;  // null: not held, because one like it is just being retired
  bool touched_c = false;        // an epoch of it began somewhere: C is not what it was
  bool warm = false;             // its last epoch is not the plan's first

  // While launched.
  uint64_t launch = 0;       // rises in launch order; 0: queued
  std::set<int> reporting;   // nodes that have not reported LaunchDone
  absl::Status first_error;  // reported
  absl::Status end_as;       // what a cancel wants it to end as
  bool victim = false;       // a launch before it spoiled the plan
  RankReports reports;
  Loop::Timer drain_timer;  // runs from its cancel on
  bool draining = false;

  std::map<uint64_t, Waiter> waiters;
  size_t look_for_gone_at = 0;  // so many waiters: then those of the gone are dropped
};

class SchedulerImpl : public Scheduler {
 public:
  explicit SchedulerImpl(const Parts& parts);
  ~SchedulerImpl() override;

  void SubmitJob(const CallContext& ctx, const v1::SubmitJobRequest& request,
                 Reply<v1::Job> reply) override;
  void RunJob(const CallContext& ctx, const v1::SubmitJobRequest& request,
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
  // Submission and ends (scheduler.cc).
  void SubmitAs(const CallContext& ctx, const v1::SubmitJobRequest& request, Submitter submitter);
  // Takes the submitter along when it returns OK.
  absl::Status Submit(const CallContext& ctx, const v1::SubmitJobRequest& request,
                      Submitter* submitter);
  // What the request log holds of a request that comes again.
  void Repeat(const RequestLog::Entry& entry, const v1::SubmitJobRequest& request,
              Submitter submitter);
  absl::StatusOr<uint64_t> CreateC(const CallContext& ctx, const v1::SubmitJobRequest& request,
                                   const JobSpec& spec);
  v1::Job RecordOf(const Job& job, const CallContext& ctx,
                   const v1::SubmitJobRequest& request) const;
  absl::StatusOr<Job*> Find(uint64_t job_id);
  void Cancel(Job* job, const absl::Status& reason);
  // Ends a job that is not launched (any more) on any node.
  void End(Job* job, v1::Job::State state, const absl::Status& error);
  // What it holds. Not while a node may still use it.
  void GiveBack(Job* job, bool c_is_whole);
  // For its clients: the record, and who waits.
  void Conclude(Job* job, v1::Job::State state, const absl::Status& error);
  // As if it had never been admitted, because of `error`.
  void Withdraw(Job* job, const absl::Status& error);
  void AnswerSubmitters(Job* job);
  void TrimHistory();

  // What clients wait for (scheduler_watch.cc).
  void Await(absl::Time deadline, Job* job, Waiter waiter);
  void AnswerSubmitter(Job* job, Submitter submitter);
  // Callers that repeat their waits leave no trail of old ones.
  void DropGoneWaiters(Job* job);
  void AddEvent(Job* job, v1::Job::State state, const std::string& message);

  // The queue (scheduler_queue.cc).
  void Enqueue(Job* job);
  void HoldPlans();
  // Pump runs soon, and not inside whoever calls.
  void RequestPump();
  // Launches what can be launched, in order on each rank.
  void Pump();
  // A launched job that has to end before `job` is launched, or null.
  const Job* InTheWayOf(const Job& job) const;
  // A launched job that may hold memory of `job`'s ranks, or null.
  const Job* LaunchedOnRanksOf(const Job& job) const;
  void OnDeadline(uint64_t job_id);
  std::string WhatItWaitsFor(const Job& job) const;
  void OnPlanned(PreparedPlan* plan);
  void OnPlanPrepared(int node, const v1::PlanPrepared& prepared);
  std::vector<Job*> QueuedOn(const PreparedPlan* plan) const;

  // What is launched (scheduler_launch.cc).
  // Launches or ends it. False: it waits for launched jobs to give back memory.
  bool Launch(Job* job);
  void OnLaunchDone(int node, const v1::LaunchDone& done);
  // Keeps the first error, has the others drain, and takes the plan out of use.
  void OnLaunchError(Job* job, int node, const absl::Status& error);
  void CancelLaunch(Job* job, const absl::Status& reason);
  // A launch before it on its plan, or null: a node ends those one after the other.
  const Job* BeforeItOnPlan(const Job& job) const;
  void OnDrainLimit(uint64_t job_id);
  void FinishLaunch(Job* job);
  void FillFigures(Job* job);
  void PutBack(Job* job);

  Loop* const loop_;
  const Clock* const clock_;
  Members* const members_;
  Placement* const placement_;
  Catalog* const catalog_;
  const std::string transport_;
  const absl::Duration drain_limit_;
  WorkspacePool workspaces_;
  PlanCache plans_;
  RequestLog requests_;
  Metrics::Counter* const submitted_;
  Metrics::Counter* const succeeded_;
  Metrics::Counter* const failed_;
  Metrics::Counter* const cancelled_;

  std::map<uint64_t, std::unique_ptr<Job>> jobs_;
  std::map<uint64_t, Job*> queue_;               // by id: admission order
  std::map<uint64_t, Job*> launched_;            // by launch
  std::map<uint64_t, int> writers_;              // tensor -> jobs not ended that write it
  std::deque<uint64_t> ended_;                   // oldest first
  std::map<std::string, PartTimes> part_times_;  // by JobSpec::problem_key; of this generation
  bool pump_requested_ = false;
  bool plans_missing_ = false;  // a queued job holds no plan
  uint64_t next_job_ = 1, next_launch_ = 1, next_waiter_ = 1;
};

}  // namespace agmm::scheduler
