#include "daemon/world/remote_control.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/rpc/call_context.h"
#include "daemon/rpc/status.h"
#include "daemon/world/job_outcomes.h"
#include "proto/convert/metadata.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

constexpr absl::Duration kStatusTimeout = absl::Seconds(1);
// Of forwarded jobs that travel together: all of a client's message could be too much for the
// daemons' stream.
constexpr size_t kForwardedBytes = 1 << 20;

void Fill(const CallContext& from, grpc::ClientContext* to) {
  if (from.deadline != absl::InfiniteFuture()) to->set_deadline(absl::ToChronoTime(from.deadline));
  const std::pair<const char*, const std::string&> metadata[] = {
      {kRequestIdKey, from.request_id},
      {kTraceparentKey, from.traceparent},
      {kSessionKey, from.session},
      {kSequencerKey, from.sequencer},
      {kPrincipalKey, from.principal}};
  for (const auto& [key, value] : metadata)
    if (!value.empty()) to->AddMetadata(key, value);
}

}  // namespace

RemoteControl::RemoteControl(std::shared_ptr<grpc::Channel> channel, std::string sequencer,
                             const StatusView* view)
    : sequencer_(std::move(sequencer)),
      view_(view),
      cluster_(v1::ClusterService::NewStub(channel)),
      tensor_(v1::TensorService::NewStub(channel)),
      job_(v1::JobService::NewStub(channel)),
      peer_(v1::PeerService::NewStub(channel)),
      down_(WithReason(absl::UnavailableError(absl::StrCat(
                           "the world is not complete: waiting for the sequencer, ", sequencer_)),
                       kReasonWorldIncomplete)) {}

RemoteControl::~RemoteControl() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  SetLost(absl::UnavailableError("the daemon is stopping"), "");
  std::unique_lock lock(mutex_);
  left_.wait(lock, [this] { return under_way_.empty(); });
}

void RemoteControl::SetConnected(std::shared_ptr<SequencerLink> link) {
  std::lock_guard lock(mutex_);
  if (!stopping_) down_ = absl::OkStatus();
  link_ = std::move(link);
}

void RemoteControl::SetLost(const absl::Status& reason, const std::string& next) {
  std::vector<std::shared_ptr<CallBase>> calls;
  std::map<uint64_t, Running> lost_jobs;
  {
    std::lock_guard lock(mutex_);
    down_ = stopping_ ? reason
                      : WithReason(absl::UnavailableError(absl::StrCat(
                                       reason.message(), next.empty() ? "" : "; ", next)),
                                   kReasonWorldIncomplete);
    for (const auto& [number, call] : under_way_) {
      call->lost = reason;
      calls.push_back(call);
    }
    link_ = nullptr;
    lost_jobs.swap(running_);
  }
  for (const auto& call : calls) call->context.TryCancel();
  for (const auto& [number, job] : lost_jobs) {
    job.outcomes->Add(ErrorOutcome(job.request_id, reason));
    job.outcomes->Flush();
  }
}

absl::Status RemoteControl::Admit(const std::shared_ptr<CallBase>& call, uint64_t* number) {
  std::lock_guard lock(mutex_);
  if (!down_.ok()) return down_;
  *number = next_++;
  under_way_[*number] = call;
  return absl::OkStatus();
}

absl::Status RemoteControl::ResultOf(const CallBase& call, const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  {
    std::lock_guard lock(mutex_);
    if (!call.lost.ok()) return call.lost;
  }
  // Our daemons answer with details; without them it is gRPC that speaks: the connection broke.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_details().empty()) {
    return WithReason(absl::AbortedError(absl::StrCat("the sequencer, ", sequencer_,
                                                      ", was lost: ", status.error_message())),
                      kReasonPeerLost);
  }
  return FromGrpc(status);
}

void RemoteControl::RunJobs(const CallContext& context, std::vector<v1::SubmitJobRequest> jobs,
                            std::shared_ptr<JobOutcomes> outcomes) {
  std::shared_ptr<SequencerLink> link;
  absl::Status down;
  uint64_t number = 0;
  {
    std::lock_guard lock(mutex_);
    down = down_;
    link = link_;
    number = next_job_;
    if (down.ok())
      for (const v1::SubmitJobRequest& job : jobs)
        running_[next_job_++] = {outcomes, job.request_id()};
  }
  if (!down.ok()) {
    for (const v1::SubmitJobRequest& job : jobs)
      outcomes->Add(ErrorOutcome(job.request_id(), down));
    return outcomes->Flush();
  }
  for (size_t next = 0; next < jobs.size();) {
    v1::MemberMessage message;
    v1::ForwardedJobs* forwarded = message.add_jobs();
    forwarded->set_principal(context.principal);
    forwarded->set_sequencer(context.sequencer);
    forwarded->set_first_number(number + next);
    for (size_t bytes = 0; next < jobs.size() && bytes < kForwardedBytes; ++next) {
      bytes += jobs[next].ByteSizeLong();
      forwarded->add_jobs()->Swap(&jobs[next]);
    }
    link->Send(std::move(message));
  }
}

void RemoteControl::OnOutcomes(google::protobuf::RepeatedPtrField<v1::ForwardedOutcome>* outcomes) {
  std::vector<std::shared_ptr<JobOutcomes>> takers;
  for (v1::ForwardedOutcome& forwarded : *outcomes) {
    std::map<uint64_t, Running>::node_type job;
    {
      std::lock_guard lock(mutex_);
      job = running_.extract(forwarded.number());
    }
    if (job.empty()) continue;
    forwarded.mutable_outcome()->set_request_id(std::move(job.mapped().request_id));
    job.mapped().outcomes->Add(std::move(*forwarded.mutable_outcome()));
    if (takers.empty() || takers.back() != job.mapped().outcomes)
      takers.push_back(std::move(job.mapped().outcomes));
  }
  for (const auto& taker : takers) taker->Flush();
}

void RemoteControl::Leave(uint64_t number) {
  std::lock_guard lock(mutex_);
  under_way_.erase(number);
  if (under_way_.empty()) left_.notify_all();
}

template <typename Request, typename Response, typename Start>
void RemoteControl::Forward(const CallContext& context, const Request& request,
                            Reply<Response> reply, Start start) {
  struct Call : CallBase {
    Request request;
    Response response;
    Reply<Response> reply;
  };
  auto call = std::make_shared<Call>();
  call->request = request;
  call->reply = std::move(reply);
  Fill(context, &call->context);
  uint64_t number = 0;
  if (absl::Status down = Admit(call, &number); !down.ok()) return call->reply(down);
  // A fill goes on without its caller, and must know that he has gone (Catalog::FillTensor).
  if constexpr (std::is_same_v<Request, v1::FillTensorRequest>) {
    context.cancel->OnCancel([weak = std::weak_ptr<Call>(call)](const absl::Status&) {
      if (const auto begun = weak.lock(); begun != nullptr) begun->context.TryCancel();
    });
  }
  start(&call->context, &call->request, &call->response, [this, call, number](grpc::Status status) {
    const absl::Status result = ResultOf(*call, status);
    if (result.ok()) {
      call->reply(std::move(call->response));
    } else {
      call->reply(result);
    }
    Leave(number);
  });
}

void RemoteControl::GetStatus(const CallContext& context, const v1::GetStatusRequest& request,
                              Reply<v1::GetStatusResponse> reply) {
  CallContext bounded = context;
  bounded.deadline = std::min(context.deadline, absl::Now() + kStatusTimeout);
  Reply<v1::GetStatusResponse> or_alone =
      [this, reply = std::move(reply)](absl::StatusOr<v1::GetStatusResponse> status) {
        if (status.ok()) return reply(*std::move(status));
        reply(view_->Alone(absl::IsDeadlineExceeded(status.status())
                               ? absl::StrCat("the sequencer, ", sequencer_, ", does not answer")
                               : std::string(status.status().message())));
      };
  Forward(bounded, request, std::move(or_alone),
          [this](auto... a) { cluster_->async()->GetStatus(a...); });
}

void RemoteControl::OpenedSession(const CallContext& context,
                                  const v1::OpenedSessionRequest& request,
                                  Reply<v1::OpenedSessionResponse> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { peer_->async()->OpenedSession(a...); });
}

void RemoteControl::CloseSession(const CallContext& context, const v1::CloseSessionRequest& request,
                                 Reply<v1::CloseSessionResponse> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { peer_->async()->CloseSession(a...); });
}

void RemoteControl::CreateTensor(const CallContext& context, const v1::CreateTensorRequest& request,
                                 Reply<v1::Tensor> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { tensor_->async()->CreateTensor(a...); });
}

void RemoteControl::DeleteTensor(const CallContext& context, const v1::DeleteTensorRequest& request,
                                 Reply<v1::DeleteTensorResponse> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { tensor_->async()->DeleteTensor(a...); });
}

void RemoteControl::ListTensors(const CallContext& context, const v1::ListTensorsRequest& request,
                                Reply<v1::ListTensorsResponse> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { tensor_->async()->ListTensors(a...); });
}

void RemoteControl::BeginAccess(const CallContext& context, const v1::BeginAccessRequest& request,
                                Reply<v1::BeginAccessResponse> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { peer_->async()->BeginAccess(a...); });
}

void RemoteControl::EndAccess(const CallContext& context, const v1::EndAccessRequest& request,
                              Reply<v1::EndAccessResponse> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { peer_->async()->EndAccess(a...); });
}

void RemoteControl::SubmitJob(const CallContext& context, const v1::SubmitJobRequest& request,
                              Reply<v1::Job> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { job_->async()->SubmitJob(a...); });
}

void RemoteControl::GetJob(const CallContext& context, const v1::GetJobRequest& request,
                           Reply<v1::Job> reply) {
  Forward(context, request, std::move(reply), [this](auto... a) { job_->async()->GetJob(a...); });
}

void RemoteControl::WaitJob(const CallContext& context, const v1::WaitJobRequest& request,
                            Reply<v1::Job> reply) {
  Forward(context, request, std::move(reply), [this](auto... a) { job_->async()->WaitJob(a...); });
}

void RemoteControl::CancelJob(const CallContext& context, const v1::CancelJobRequest& request,
                              Reply<v1::Job> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { job_->async()->CancelJob(a...); });
}

void RemoteControl::GetTensor(const CallContext& context, const v1::GetTensorRequest& request,
                              Reply<v1::Tensor> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { tensor_->async()->GetTensor(a...); });
}

void RemoteControl::FillTensor(const CallContext& context, const v1::FillTensorRequest& request,
                               Reply<v1::Tensor> reply) {
  Forward(context, request, std::move(reply),
          [this](auto... a) { tensor_->async()->FillTensor(a...); });
}

void RemoteControl::ListJobs(const CallContext& context, const v1::ListJobsRequest& request,
                             Reply<v1::ListJobsResponse> reply) {
  Forward(context, request, std::move(reply), [this](auto... a) { job_->async()->ListJobs(a...); });
}

void RemoteControl::PollJob(const CallContext& context, const v1::PollJobRequest& request,
                            Reply<v1::PollJobResponse> reply) {
  Forward(context, request, std::move(reply), [this](auto... a) { peer_->async()->PollJob(a...); });
}

}  // namespace agmm
