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
  static std::unique_ptr<Scheduler> Create(Loop* loop, const Clock* clock, Members* members,
                                           Placement* placement, Catalog* catalog,
                                           Metrics* metrics);

  virtual void SubmitJob(const CallContext&, const v1::SubmitJobRequest&, Reply<v1::Job>) = 0;
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
