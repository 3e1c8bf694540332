// The sequencer's jobs: admission, plans, one launch order, history. On the loop only.
#pragma once

#include <memory>
#include <string>

#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/call_context.h"
#include "daemon/observe/metrics.h"
#include "daemon/tensor/catalog.h"
#include "daemon/tensor/placement.h"
#include "daemon/world/loop.h"
#include "daemon/world/members.h"
#include "kernels/base/clock.h"

namespace agmm {

class Scheduler : public WorldListener {
 public:
  virtual ~Scheduler() = default;
  // All outlive the scheduler, but for the loops: those end before it, `planner` first.
  struct Parts {
    Loop* loop = nullptr;
    Loop* planner = nullptr;  // plans and proves schedules, which may take seconds
    const Clock* clock = Clock::Real();
    Members* members = nullptr;
    Placement* placement = nullptr;
    Catalog* catalog = nullptr;
    Metrics* metrics = nullptr;
    std::string transport;  // what carries bytes between nodes; for the jobs' records
    // How long a node has to report the end of a launch that was cancelled, before it is given up.
    absl::Duration drain_limit = absl::Seconds(10);
  };
  static std::unique_ptr<Scheduler> Create(const Parts& parts);

  // Replies once the job's plan is made; a request that cannot be planned leaves nothing behind.
  virtual void SubmitJob(const CallContext&, const v1::SubmitJobRequest&, Reply<v1::Job>) = 0;
  // SubmitJob, and replies as WaitJob does, without events and ranks.
  virtual void RunJob(const CallContext&, const v1::SubmitJobRequest&, Reply<v1::Job>) = 0;
  virtual void GetJob(const CallContext&, const v1::GetJobRequest&, Reply<v1::Job>) = 0;
  virtual void WaitJob(const CallContext&, const v1::WaitJobRequest&, Reply<v1::Job>) = 0;
  virtual void CancelJob(const CallContext&, const v1::CancelJobRequest&, Reply<v1::Job>) = 0;
  virtual void ListJobs(const CallContext&, const v1::ListJobsRequest&,
                        Reply<v1::ListJobsResponse>) = 0;
  virtual void PollJob(const CallContext&, const v1::PollJobRequest&,
                       Reply<v1::PollJobResponse>) = 0;
  // Cancels what belongs to the session.
  virtual void EndSession(const std::string& session_id) = 0;
};

}  // namespace agmm
