// Control on the sequencer's own daemon: every call runs on the loop.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "daemon/control.h"
#include "daemon/job/scheduler.h"
#include "daemon/tensor/catalog.h"
#include "daemon/tensor/placement.h"
#include "daemon/world/earlier_sequencer.h"
#include "daemon/world/loop.h"
#include "daemon/world/sequencer.h"

namespace agmm {

class LocalControl final : public Control {
 public:
  // All outlive the loop's run; touched on the loop only.
  struct Parts {
    Loop* loop = nullptr;
    Sequencer* sequencer = nullptr;
    Placement* placement = nullptr;
    Catalog* catalog = nullptr;
    Scheduler* scheduler = nullptr;
  };
  explicit LocalControl(const Parts& parts) : parts_(parts) {}

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

  // On the loop: the same for a member's client; the outcomes go by its link.
  void RunForwarded(const std::shared_ptr<MemberLink>& link, const v1::ForwardedJobs& jobs);

  // On the loop: what a client or an access of that daemon held ends with it.
  void OnNodeLost(int node);

 private:
  // Runs call(context, request, reply) on the loop; refuses ids that another sequencer gave.
  template <typename Request, typename Response, typename Call>
  void OnLoop(const CallContext& context, const Request& request, Reply<Response> reply,
              Call call) {
    if (!context.sequencer.empty() && context.sequencer != parts_.sequencer->incarnation())
      return reply(OfAnEarlierSequencer(request));
    parts_.loop->Post([context, request, reply = std::move(reply), call]() mutable {
      call(context, request, std::move(reply));
    });
  }
  void RunJob(const CallContext& context, const v1::SubmitJobRequest& request,
              Reply<v1::Job> reply);
  void EndSession(const std::string& session);
  // Nothing new belongs to a session that has ended: nobody would end it.
  absl::Status CheckSession(const std::string& session) const;

  const Parts parts_;
  struct Session {
    int node = 0;      // that its client is connected to
    uint64_t key = 0;  // of who may close it
  };
  std::map<std::string, Session> sessions_;  // on the loop
};

}  // namespace agmm
