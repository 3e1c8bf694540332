#include "daemon/link/sequencer_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/link/grpc_context.h"
#include "daemon/link/protocol.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "proto/convert/grpc_call.h"

namespace agmm {
namespace {

// A sequencer that is silent for longer is lost; a path may have a round-trip time of a second.
constexpr absl::Duration kStatusTimeout = kSilenceLimit;

absl::Status WorldIncomplete(absl::string_view why) {
  return WithReason(absl::UnavailableError(why), kReasonWorldIncomplete);
}

}  // namespace

SequencerClient::SequencerClient(std::shared_ptr<grpc::Channel> channel, std::string sequencer,
                                 const PauseWatch* pauses)
    : channel_(std::move(channel)),
      sequencer_(std::move(sequencer)),
      pauses_(pauses),
      cluster_(v1::ClusterService::NewStub(channel_)),
      tensor_(v1::TensorService::NewStub(channel_)),
      peer_(v1::PeerService::NewStub(channel_)),
      down_(WorldIncomplete(
          absl::StrCat("the world is not complete: waiting for the sequencer, ", sequencer_))) {}

SequencerClient::~SequencerClient() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  SetLost(absl::UnavailableError("the daemon is stopping"), "");
  std::unique_lock lock(mutex_);
  left_.wait(lock, [this] { return under_way_.empty(); });
}

void SequencerClient::SetConnected(std::string token) {
  std::lock_guard lock(mutex_);
  token_ = std::move(token);
  if (!stopping_) down_ = absl::OkStatus();
}

void SequencerClient::SetLost(const absl::Status& reason, const std::string& next) {
  std::set<std::shared_ptr<Call>> calls;
  {
    std::lock_guard lock(mutex_);
    down_ = stopping_
                ? reason
                : WorldIncomplete(absl::StrCat(reason.message(), next.empty() ? "" : "; ", next));
    for (const auto& call : under_way_) call->lost = reason;
    calls = under_way_;
  }
  for (const auto& call : calls) call->context.TryCancel();
}

absl::Status SequencerClient::Enter(const CallContext& caller, const std::shared_ptr<Call>& call) {
  SetCaller(caller, &call->context);
  std::lock_guard lock(mutex_);
  if (!down_.ok()) return down_;
  call->context.AddMetadata(kMemberKey, token_);
  under_way_.insert(call);
  return absl::OkStatus();
}

absl::Status SequencerClient::Result(const Call& call, const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  {
    std::lock_guard lock(mutex_);
    if (!call.lost.ok()) return call.lost;
  }
  // Daemons answer with details; an error without details is gRPC's own report of a broken
  // connection.
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_details().empty()) {
    const std::string pause = pauses_ == nullptr ? "" : pauses_->Recent(PauseNanos());
    return WithReason(
        absl::AbortedError(
            pause.empty()
                ? absl::StrCat("the sequencer, ", sequencer_, ", was lost: its connection broke")
                : absl::StrCat(pause, ", and lost the connection to the sequencer, ", sequencer_,
                               ", meanwhile")),
        kReasonPeerLost);
  }
  const absl::Status result = FromGrpc(status);
  if (!status.error_details().empty()) return result;
  return Annotate(result, absl::StrCat("the call to the sequencer, ", sequencer_, ", failed"));
}

void SequencerClient::Leave(const std::shared_ptr<Call>& call) {
  std::lock_guard lock(mutex_);
  under_way_.erase(call);
  if (under_way_.empty()) left_.notify_all();
}

template <typename Request, typename Response, typename Start>
void SequencerClient::Bind(Handler<Request, Response>* handler, Start start) {
  struct TypedCall : Call {
    Request request;
    Response response;
  };
  *handler = [this, start](const CallContext& caller, const Request& request,
                           Reply<Response> reply) {
    auto call = std::make_shared<TypedCall>();
    call->request = request;
    if (absl::Status down = Enter(caller, call); !down.ok()) return reply(std::move(down));
    caller.cancel->OnCancel([weak = std::weak_ptr<TypedCall>(call)](const absl::Status&) {
      if (const auto begun = weak.lock(); begun != nullptr) begun->context.TryCancel();
    });
    start(&call->context, &call->request, &call->response,
          [this, call, reply = std::move(reply)](const grpc::Status& status) {
            absl::Status result = Result(*call, status);
            if (result.ok()) {
              reply(std::move(call->response));
            } else {
              reply(std::move(result));
            }
            Leave(call);
          });
  };
}

SequencerCalls SequencerClient::calls() {
  SequencerCalls calls;
  Bind(&calls.opened_session, [this](auto... a) { peer_->async()->OpenedSession(a...); });
  Bind(&calls.close_session, [this](auto... a) { peer_->async()->CloseSession(a...); });
  Bind(&calls.get_tensor, [this](auto... a) { tensor_->async()->GetTensor(a...); });
  Bind(&calls.begin_lease, [this](auto... a) { peer_->async()->BeginLease(a...); });
  Bind(&calls.end_lease, [this](auto... a) { peer_->async()->EndLease(a...); });
  Bind(&calls.list_sessions, [this](auto... a) { cluster_->async()->ListSessions(a...); });
  Bind(&calls.get_status, [this](auto... a) { cluster_->async()->GetStatus(a...); });
  calls.get_status = [this, ask = std::move(calls.get_status)](const CallContext& caller,
                                                               const v1::GetStatusRequest& request,
                                                               Reply<v1::GetStatusResponse> reply) {
    CallContext bounded = caller;
    bounded.deadline = std::min(caller.deadline, Deadline::After(kStatusTimeout));
    ask(bounded, request, [this, reply = std::move(reply)](auto status) {
      if (absl::IsDeadlineExceeded(status.status())) {
        status = absl::DeadlineExceededError(
            absl::StrCat("the sequencer, ", sequencer_, ", does not answer"));
      }
      reply(std::move(status));
    });
  };
  return calls;
}

}  // namespace agmm
