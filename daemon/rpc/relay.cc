// On a member, relays the calls of a service that only the sequencer answers: every method is
// forwarded as bytes and answered with the sequencer's bytes and status. The sequencer validates
// the requests.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "daemon/link/grpc_context.h"
#include "daemon/rpc/method_service.h"
#include "daemon/rpc/services.h"
#include "proto/convert/grpc_call.h"

namespace agmm {
namespace {

using Bytes = grpc::ByteBuffer;

// One relayed call. At most one request and one response are in transit, each read only once the
// previous message has been written. Lives until both calls are done.
class RelayedCall final : public grpc::ServerBidiReactor<Bytes, Bytes>,
                          public SequencerClient::Call,
                          public std::enable_shared_from_this<RelayedCall> {
 public:
  RelayedCall(SequencerClient* sequencer, const MethodService::Method& method)
      : sequencer_(sequencer), method_(method) {}

  void Begin(grpc::CallbackServerContext* caller) {
    self_ = shared_from_this();
    if (absl::Status down = sequencer_->Enter(CallContextOf(caller), self_); !down.ok())
      return Finish(ToGrpc(down));
    grpc::GenericStub(sequencer_->channel())
        .PrepareBidiStreamingCall(&context, MethodService::PathOf(method_), {}, &upstream_);
    upstream_.AddMultipleHolds(2);  // one for the requests, one for the responses
    upstream_.StartRead(&response_);
    upstream_.StartCall();
    StartRead(&request_);
  }

  // From the caller.
  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (requests_ == Requests::kEnded) return;
    if (!ok) {
      upstream_.StartWritesDone();
      EndRequests();
    } else if (method_.client_streaming()) {
      requests_ = Requests::kWriting;
      upstream_.StartWrite(&request_);
    } else {
      upstream_.StartWriteLast(&request_, grpc::WriteOptions());
      EndRequests();
    }
  }
  void OnWriteDone(bool ok) override {
    if (ok) return upstream_.StartRead(&response_);
    context.TryCancel();
    EndResponses();
  }
  void OnCancel() override { context.TryCancel(); }
  void OnDone() override { const std::shared_ptr<RelayedCall> last = std::move(self_); }

 private:
  // The call to the sequencer.
  struct Upstream final : grpc::ClientBidiReactor<Bytes, Bytes> {
    explicit Upstream(RelayedCall* relayed) : call(relayed) {}
    void OnReadDone(bool ok) override { call->OnResponse(ok); }
    void OnWriteDone(bool ok) override { call->OnRequestWritten(ok); }
    void OnDone(const grpc::Status& status) override { call->OnAnswered(status); }
    RelayedCall* const call;
  };
  // kReading: waits for the caller's next request. kEnded: no further request is forwarded.
  enum class Requests { kReading, kWriting, kEnded };

  void OnRequestWritten(bool ok) {
    std::lock_guard lock(mutex_);
    if (requests_ != Requests::kWriting) return;
    if (!ok || responses_ended_) return EndRequests();
    requests_ = Requests::kReading;
    StartRead(&request_);
  }
  void OnResponse(bool ok) {
    if (ok && method_.server_streaming()) return StartWrite(&response_);
    answered_ = ok;
    EndResponses();
  }
  // With the lock.
  void EndRequests() {
    requests_ = Requests::kEnded;
    upstream_.RemoveHold();
  }
  // Does not wait for a caller that may have more requests.
  void EndResponses() {
    std::lock_guard lock(mutex_);
    responses_ended_ = true;
    if (requests_ == Requests::kReading) EndRequests();
    upstream_.RemoveHold();
  }
  void OnAnswered(const grpc::Status& status) {
    const std::shared_ptr<RelayedCall> self = self_;
    const grpc::Status result = ToGrpc(sequencer_->Result(*this, status));
    if (result.ok() && answered_) {
      StartWriteAndFinish(&response_, grpc::WriteOptions(), result);
    } else {
      Finish(result);
    }
    sequencer_->Leave(self);
  }

  SequencerClient* const sequencer_;
  const MethodService::Method& method_;
  Upstream upstream_{this};
  Bytes request_, response_;
  bool answered_ = false;              // response_ is sent with the status
  std::shared_ptr<RelayedCall> self_;  // until done
  std::mutex mutex_;                   // guards what follows
  Requests requests_ = Requests::kReading;
  bool responses_ended_ = false;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeRelay(const std::string& service, SequencerClient* sequencer) {
  auto relay = std::make_unique<MethodService>(service);
  for (int i = 0; i < relay->descriptor().method_count(); ++i) {
    const MethodService::Method& method = *relay->descriptor().method(i);
    relay->AddRawBidiStream<Bytes, Bytes>(
        method, [sequencer, &method](grpc::CallbackServerContext* context) {
          auto call = std::make_shared<RelayedCall>(sequencer, method);
          call->Begin(context);
          return call.get();
        });
  }
  return relay;
}

}  // namespace agmm
