// The sequencer's jobs: admission, plans, one launch order, history. Touched on the loop only.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/observe/metrics.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/history.h"
#include "daemon/sequencer/launches.h"
#include "daemon/sequencer/members.h"
#include "daemon/sequencer/placement.h"
#include "daemon/sequencer/plan_cache.h"
#include "daemon/sequencer/progress_queries.h"
#include "daemon/sequencer/queue.h"
#include "daemon/sequencer/workspaces.h"
#include "kernels/base/clock.h"
#include "kernels/base/loop.h"
#include "proto/convert/wait_chain.h"

namespace agmm {

// The machine and the tuned plans by which options are chosen; either may be null.
struct PlanBasis {
  std::shared_ptr<const Machine> machine;
  std::shared_ptr<const TuningTable> tuning;
};

class Scheduler : public WorldListener {
 public:
  // All must outlive the scheduler, except the loops, which end before it, the planners first.
  struct Parts {
    Loop* loop = nullptr;
    Planners planners;
    int64_t plan_cache_bytes = 0;  // bound per node on plans that no job holds
    scheduler::History::Bounds history = {};
    scheduler::Journal* journal = nullptr;  // null: none
    const Clock* clock = Clock::Real();
    Members* members = nullptr;
    Placement* placement = nullptr;
    Catalog* catalog = nullptr;
    Metrics* metrics = nullptr;
    std::string transport;  // the transport between nodes, for the jobs' records
    // By which plans are chosen now; none: open options get defaults.
    std::function<PlanBasis()> basis;
    // Time within which a node must report the end of a cancelled launch before the sequencer drops
    // it.
    absl::Duration drain_limit = absl::Seconds(10);
  };
  explicit Scheduler(const Parts& parts);
  ~Scheduler() override;

  // Replies once the job's plan is made. A request that cannot be planned leaves nothing behind.
  void SubmitJob(const CallContext&, const v1::SubmitJobRequest&, Reply<v1::Job>);
  // Like SubmitJob, but replies like WaitJob, without events and ranks.
  void RunJob(const CallContext&, const v1::SubmitJobRequest&, Reply<v1::Job>);
  // Returns true if RunJob finds room for the caller's job in the queue, or the job that the
  // request made before.
  bool HasRoom(const CallContext& ctx, const std::string& request_id);
  void GetJob(const CallContext&, const v1::GetJobRequest&, Reply<v1::Job>);
  void WaitJob(const CallContext&, const v1::WaitJobRequest&, Reply<v1::Job>);
  void CancelJob(const CallContext&, const v1::CancelJobRequest&, Reply<v1::Job>);
  // Replies once there are events after request.after_event, or the job has ended: one response for
  // each of them, the last one with the job if it has ended.
  void PollJob(const CallContext&, const v1::WatchJobRequest&,
               Reply<std::vector<v1::WatchJobResponse>>);
  const scheduler::History& history() const { return history_; }
  // Returns true if no job is queued or launched.
  bool IsIdle() const { return launches_.jobs().empty() && queue_.jobs().empty(); }
  // Returns, by session, the number of jobs that have not ended.
  std::map<std::string, int> JobsBySession() const;
  // Cancels the jobs of the session.
  void EndSession(const std::string& session_id);

  void OnGenerationEnded(const std::vector<int>& lost_nodes, const absl::Status& reason) override;
  void OnReady() override { RequestPump(); }
  void OnReport(int node, const v1::Report& report) override;

 private:
  using Job = scheduler::Job;
  using Waiter = scheduler::Waiter;

  // Submits the request, or finds the job that it made before, and waits for that.
  void SubmitAndAwait(const CallContext& ctx, const v1::SubmitJobRequest& request, Waiter waiter);
  absl::StatusOr<Job*> Submit(const CallContext& ctx, const v1::SubmitJobRequest& request);
  // Makes the tensors of the job's results that have none yet; on an error, none.
  absl::Status MakeResults(const CallContext& ctx, const std::string& session_id, JobSpec* spec);
  // Deletes the tensors that were made for the job.
  void DeleteMade(const JobSpec& spec);
  // Sets the machine and the tuned plans by which the job's options are chosen.
  void SetBasis(const v1::SubmitJobRequest& request, JobSpec* spec) const;
  void FillRecord(const CallContext& ctx, const v1::SubmitJobRequest& request, Job* job) const;
  void OnPlan(PreparedPlan* plan);

  // Pumps soon, but not inside the caller.
  void RequestPump();
  // Launches the jobs that can be launched, in order on each rank.
  void Pump();
  // Launches or ends a job that is ready. Returns false if it waits for memory of launched jobs.
  bool Launch(Job* job);
  void OnLaunchOver(Job* job);
  void Requeue(Job* job);

  // Queued and launched jobs.
  std::vector<Job*> OpenJobs() const;
  void Cancel(Job* job, const absl::Status& reason);
  // Returns the record as kept, with the times of steps.
  v1::Job Record(const Job& job) const;
  // Returns the record of a launched job with the progress of its ranks.
  v1::Job RecordWith(const Job& job, const scheduler::ProgressQueries::Answer& answer) const;
  void OnDeadline(Job* job);
  // Ends a launched job for its clients as soon as its nodes have reported their progress. The
  // nodes may not have ended it yet, because a message that is being sent cannot be recalled.
  void ConcludeLate(Job* job, const absl::Status& late);
  // Returns the step that holds up all others; empty if the job is merely long.
  std::string CauseOf(const RankReports& reports) const;
  // Returns the error of a launched job. If its deadline has passed, the error names the job, its
  // timeout and the cause before what the node reported.
  absl::Status ErrorOf(const Job& job, const absl::Status& reported) const;
  // Ends a job that is not launched on any node.
  void End(Job* job, v1::Job::State state, const absl::Status& error);
  // Ends the job for its clients.
  void Conclude(Job* job, v1::Job::State state, const absl::Status& error);
  // Undoes the admission, because of `error`.
  void Withdraw(Job* job, const absl::Status& error);

  Loop* const loop_;
  const Clock* const clock_;
  Members* const members_;
  Placement* const placement_;
  Catalog* const catalog_;
  const std::string transport_;
  const std::function<PlanBasis()> basis_;
  WorkspacePool workspaces_;
  PlanCache plans_;
  scheduler::History history_;
  scheduler::Launches launches_;
  scheduler::Queue queue_;
  scheduler::ProgressQueries progress_;
  bool pump_requested_ = false;
};

}  // namespace agmm
