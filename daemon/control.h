// What the sequencer does, wherever it is: LocalControl on its own daemon, RemoteControl on the
// others.
#pragma once

#include <memory>
#include <vector>

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/call_context.h"

namespace agmm {

// Where the outcomes of a caller's jobs go. Thread-safe; never blocks.
class JobOutcomes {
 public:
  virtual ~JobOutcomes() = default;
  virtual void Add(v1::JobOutcome outcome) = 0;
  // What was added goes out; so those that come together travel together.
  virtual void Flush() = 0;
};

// Thread-safe; never blocks. Errors of every call: UNAVAILABLE while there is no sequencer or the
// world is not complete (naming who is missing), ABORTED with PEER_LOST when the sequencer went
// away meanwhile.
class Control {
 public:
  virtual ~Control() = default;
  virtual void GetStatus(const CallContext&, const v1::GetStatusRequest&,
                         Reply<v1::GetStatusResponse>) = 0;
  virtual void OpenedSession(const CallContext&, const v1::OpenedSessionRequest&,
                             Reply<v1::OpenedSessionResponse>) = 0;
  virtual void CloseSession(const CallContext&, const v1::CloseSessionRequest&,
                            Reply<v1::CloseSessionResponse>) = 0;
  virtual void CreateTensor(const CallContext&, const v1::CreateTensorRequest&,
                            Reply<v1::Tensor>) = 0;
  virtual void DeleteTensor(const CallContext&, const v1::DeleteTensorRequest&,
                            Reply<v1::DeleteTensorResponse>) = 0;
  virtual void ListTensors(const CallContext&, const v1::ListTensorsRequest&,
                           Reply<v1::ListTensorsResponse>) = 0;
  virtual void GetTensor(const CallContext&, const v1::GetTensorRequest&, Reply<v1::Tensor>) = 0;
  virtual void FillTensor(const CallContext&, const v1::FillTensorRequest&, Reply<v1::Tensor>) = 0;
  virtual void BeginAccess(const CallContext&, const v1::BeginAccessRequest&,
                           Reply<v1::BeginAccessResponse>) = 0;
  virtual void EndAccess(const CallContext&, const v1::EndAccessRequest&,
                         Reply<v1::EndAccessResponse>) = 0;
  virtual void SubmitJob(const CallContext&, const v1::SubmitJobRequest&, Reply<v1::Job>) = 0;
  virtual void GetJob(const CallContext&, const v1::GetJobRequest&, Reply<v1::Job>) = 0;
  virtual void WaitJob(const CallContext&, const v1::WaitJobRequest&, Reply<v1::Job>) = 0;
  virtual void CancelJob(const CallContext&, const v1::CancelJobRequest&, Reply<v1::Job>) = 0;
  virtual void ListJobs(const CallContext&, const v1::ListJobsRequest&,
                        Reply<v1::ListJobsResponse>) = 0;
  // SubmitJob and then WaitJob of each; `outcomes` is given one for each.
  virtual void RunJobs(const CallContext&, std::vector<v1::SubmitJobRequest>,
                       std::shared_ptr<JobOutcomes> outcomes) = 0;
  virtual void PollJob(const CallContext&, const v1::PollJobRequest&,
                       Reply<v1::PollJobResponse>) = 0;
};

}  // namespace agmm
