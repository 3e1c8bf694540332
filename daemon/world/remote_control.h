// Control on the other daemons: every call is forwarded to the sequencer's.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "agmm/v1/cluster.grpc.pb.h"
#include "agmm/v1/job.grpc.pb.h"
#include "agmm/v1/peer.grpc.pb.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/control.h"
#include "daemon/world/link.h"
#include "daemon/world/status_view.h"

namespace agmm {

// Calls carry the deadline, the ids and the principal of who asked here. Errors keep their code,
// message and reason. Calls under way end as soon as the stream to the sequencer does, with ABORTED
// and PEER_LOST.
class RemoteControl final : public Control {
 public:
  // `sequencer` names it: "node a (10.0.0.1:7101)". `view` outlives this.
  RemoteControl(std::shared_ptr<grpc::Channel> channel, std::string sequencer,
                const StatusView* view);
  // Ends the calls under way and waits for their ends.
  ~RemoteControl() override;

  // The stream to the sequencer is up; jobs are forwarded by `link`.
  void SetConnected(std::shared_ptr<SequencerLink> link);
  // It is down: ends the calls under way with `reason`. Those that come are told `next`, too, if it
  // is not empty.
  void SetLost(const absl::Status& reason, const std::string& next);

  void GetStatus(const CallContext&, const v1::GetStatusRequest&,
                 Reply<v1::GetStatusResponse>) override;
  void OpenedSession(const CallContext&, const v1::OpenedSessionRequest&,
                     Reply<v1::OpenedSessionResponse>) override;
  void CloseSession(const CallContext&, const v1::CloseSessionRequest&,
                    Reply<v1::CloseSessionResponse>) override;
  void CreateTensor(const CallContext&, const v1::CreateTensorRequest&, Reply<v1::Tensor>) override;
  void DeleteTensor(const CallContext&, const v1::DeleteTensorRequest&,
                    Reply<v1::DeleteTensorResponse>) override;
  void ListTensors(const CallContext&, const v1::ListTensorsRequest&,
                   Reply<v1::ListTensorsResponse>) override;
  void GetTensor(const CallContext&, const v1::GetTensorRequest&, Reply<v1::Tensor>) override;
  void FillTensor(const CallContext&, const v1::FillTensorRequest&, Reply<v1::Tensor>) override;
  void BeginAccess(const CallContext&, const v1::BeginAccessRequest&,
                   Reply<v1::BeginAccessResponse>) override;
  void EndAccess(const CallContext&, const v1::EndAccessRequest&,
                 Reply<v1::EndAccessResponse>) override;
  void SubmitJob(const CallContext&, const v1::SubmitJobRequest&, Reply<v1::Job>) override;
  void GetJob(const CallContext&, const v1::GetJobRequest&, Reply<v1::Job>) override;
  void WaitJob(const CallContext&, const v1::WaitJobRequest&, Reply<v1::Job>) override;
  void CancelJob(const CallContext&, const v1::CancelJobRequest&, Reply<v1::Job>) override;
  void ListJobs(const CallContext&, const v1::ListJobsRequest&,
                Reply<v1::ListJobsResponse>) override;
  void PollJob(const CallContext&, const v1::PollJobRequest&, Reply<v1::PollJobResponse>) override;
  void RunJobs(const CallContext&, std::vector<v1::SubmitJobRequest>,
               std::shared_ptr<JobOutcomes>) override;

  // From the stream, on any thread; takes them along.
  void OnOutcomes(google::protobuf::RepeatedPtrField<v1::ForwardedOutcome>* outcomes);

 private:
  struct CallBase {
    grpc::ClientContext context;
    absl::Status lost;  // set: the call was ended here, because of this
  };

  // A job that was forwarded and has no outcome yet.
  struct Running {
    std::shared_ptr<JobOutcomes> outcomes;
    std::string request_id;
  };

  // `start(context, request, response, done)` makes the call.
  template <typename Request, typename Response, typename Start>
  void Forward(const CallContext& context, const Request& request, Reply<Response> reply,
               Start start);
  // OK: the call is among those under way. Else why it cannot be made.
  absl::Status Admit(const std::shared_ptr<CallBase>& call, uint64_t* number);
  absl::Status ResultOf(const CallBase& call, const grpc::Status& status);
  void Leave(uint64_t number);

  const std::string sequencer_;
  const StatusView* const view_;
  const std::unique_ptr<v1::ClusterService::Stub> cluster_;
  const std::unique_ptr<v1::TensorService::Stub> tensor_;
  const std::unique_ptr<v1::JobService::Stub> job_;
  const std::unique_ptr<v1::PeerService::Stub> peer_;

  std::mutex mutex_;
  std::condition_variable left_;
  absl::Status down_;  // OK while the stream is up; else why calls cannot be made
  bool stopping_ = false;
  uint64_t next_ = 1;
  std::map<uint64_t, std::shared_ptr<CallBase>> under_way_;
  std::shared_ptr<SequencerLink> link_;
  uint64_t next_job_ = 1;
  std::map<uint64_t, Running> running_;
};

}  // namespace agmm
