// Answers to gRPC calls from absl::StatusOr, on any thread, exactly once.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "daemon/call_context.h"
#include "daemon/rpc/call_context.h"
#include "daemon/rpc/status.h"
#include "daemon/rpc/validate.h"

namespace agmm {

// One unary call. Finishes with the reply; or without it, when the caller is gone or the server
// stops first: a reply that comes later is dropped.
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
    const absl::Status gone = absl::CancelledError("the caller is gone, or the daemon is stopping");
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

// A handler in one line:
//   return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
//     control_->GetJob(call, *request, std::move(reply));
//   });
// A request that Validate refuses is answered here; one without a Validate does not compile.
// `start` runs before this returns. The request may die with the caller: keep a copy for later.
template <typename Request, typename Response, typename Start>
grpc::ServerUnaryReactor* AnswerUnary(grpc::CallbackServerContext* context, const Request* request,
                                      Response* response, Start&& start) {
  const CallContext context_of_call = CallContextOf(context);
  auto* call = new UnaryCall<Response>(response, context_of_call.cancel);
  Reply<Response> reply = call->reply();
  if (absl::Status valid = Validate(*request); !valid.ok()) {
    reply(std::move(valid));
  } else {
    start(context_of_call, std::move(reply));
  }
  return call;
}

}  // namespace agmm
