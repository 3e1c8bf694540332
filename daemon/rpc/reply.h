// Answers gRPC calls with absl::StatusOr, on any thread, exactly once.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/link/grpc_context.h"
#include "daemon/link/sequencer_calls.h"
#include "daemon/rpc/validate.h"
#include "proto/convert/grpc_status.h"

namespace agmm {

// One unary call. Finishes with the reply, or without it if the caller leaves or the server stops
// first; a later reply is dropped.
template <typename Response>
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall(Response* response, std::shared_ptr<CancelToken> cancel)
      : cancel_(std::move(cancel)), state_(std::make_shared<State>()) {
    state_->reactor = this;
    state_->response = response;
  }

  Reply<Response> reply() {
    return [state = state_](absl::StatusOr<Response> result) {
      std::lock_guard lock(state->mutex);
      UnaryCall* const reactor = std::exchange(state->reactor, nullptr);
      if (reactor == nullptr) return;
      if (result.ok()) *state->response = *std::move(result);
      reactor->Finish(ToGrpc(result.status()));
    };
  }

  void OnCancel() override {
    const absl::Status gone =
        absl::CancelledError("the caller cancelled, or the daemon is stopping");
    cancel_->Cancel(gone);
    reply()(gone);
  }
  void OnDone() override { delete this; }

 private:
  struct State {
    std::mutex mutex;
    UnaryCall* reactor = nullptr;  // null once finished
    Response* response = nullptr;  // lives until then
  };
  const std::shared_ptr<CancelToken> cancel_;
  const std::shared_ptr<State> state_;
};

// Answers a call with `handler`, which runs before this returns. A request that Validate refuses is
// answered here; a request type without a Validate does not link.
template <typename Request, typename Response>
grpc::ServerUnaryReactor* AnswerUnary(
    grpc::CallbackServerContext* context, const Request* request, Response* response,
    const std::type_identity_t<Handler<Request, Response>>& handler) {
  const CallContext context_of_call = CallContextOf(context);
  auto* call = new UnaryCall<Response>(response, context_of_call.cancel);
  Reply<Response> reply = call->reply();
  if (absl::Status valid = Validate(*request); !valid.ok()) {
    reply(std::move(valid));
  } else {
    handler(context_of_call, *request, std::move(reply));
  }
  return call;
}

}  // namespace agmm
