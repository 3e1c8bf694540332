// gRPC services whose methods are added one by one.
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/service_type.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "daemon/link/grpc_context.h"
#include "daemon/link/parsed.h"
#include "daemon/link/sequencer_calls.h"
#include "daemon/rpc/caller_check.h"
#include "daemon/rpc/validate.h"
#include "proto/convert/grpc_call.h"

namespace agmm {

// The type of a server's answers, in place of Message. Its memory is freed once it has been
// serialized. gRPC itself would keep the message, which may be seven times as large as its bytes,
// until the client has read the bytes.
template <typename Message>
struct Outgoing {
  mutable Message message;  // empty once serialized
};

}  // namespace agmm

namespace grpc {

template <typename Message>
class SerializationTraits<agmm::Outgoing<Message>, void> {
 public:
  static Status Serialize(const agmm::Outgoing<Message>& outgoing, ByteBuffer* bytes,
                          bool* own_buffer) {
    Status status = SerializationTraits<Message>::Serialize(outgoing.message, bytes, own_buffer);
    outgoing.message = Message();  // Clear would keep memory
    return status;
  }
};

}  // namespace grpc

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

// A method is identified by its request type, which is unique within its service. Methods that are
// not added are UNIMPLEMENTED. A request that cannot be parsed is INVALID_ARGUMENT.
class MethodService : public grpc::Service {
 public:
  using Method = google::protobuf::MethodDescriptor;
  using Context = grpc::CallbackServerContext;

  // `name`: "agmm.v1.JobService".
  explicit MethodService(const std::string& name)
      : service_(*google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name)) {}

  // Adds a method with one response, which `handler` returns; see AnswerUnary.
  template <typename Request, typename Response>
  void AddUnary(Handler<Request, Response> handler) {
    AddReactor<Request, Response>([handler = std::move(handler)](Context* context,
                                                                 const Request* request,
                                                                 Response* response) {
      return AnswerUnary(context, request, response, handler);
    });
  }
  // Like AddUnary, but `start` returns the reactor of a call.
  template <typename Request, typename Response, typename Start>
  void AddReactor(Start start) {
    Add(MethodOf<Request>(), grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::CallbackUnaryHandler<Parsed<Request>, Outgoing<Response>>(
            GuardedRequest<grpc::ServerUnaryReactor, Request>(
                [start = std::move(start)](Context* context, const Request* request,
                                           Outgoing<Response>* response) {
                  return start(context, request, &response->message);
                })));
  }
  // Adds a method with a stream of responses; `start` returns the reactor of a call.
  template <typename Request, typename Response, typename Start>
  void AddWriteStream(Start start) {
    Add(MethodOf<Request>(), grpc::internal::RpcMethod::SERVER_STREAMING,
        new grpc::internal::CallbackServerStreamingHandler<Parsed<Request>, Response>(
            GuardedRequest<grpc::ServerWriteReactor<Response>, Request>(std::move(start))));
  }
  // Adds a method with streams in both directions, which every method is on the wire.
  template <typename Request, typename Response, typename Start>
  void AddBidiStream(Start start) {
    AddRawBidiStream<Parsed<Request>, Response>(MethodOf<Request>(), std::move(start));
  }
  // `Request` is the type that gRPC reads.
  template <typename Request, typename Response, typename Start>
  void AddRawBidiStream(const Method& method, Start start) {
    Add(method, grpc::internal::RpcMethod::BIDI_STREAMING,
        new grpc::internal::CallbackBidiHandler<Request, Response>(
            Guarded<grpc::ServerBidiReactor<Request, Response>>(std::move(start))));
  }

  // From now on calls from non-members fail (CheckMember). To be called before the server starts.
  void RefuseNonMembers() { refuses_non_members_ = true; }

  const google::protobuf::ServiceDescriptor& descriptor() const { return service_; }
  // Returns "/agmm.v1.JobService/GetJob".
  static std::string PathOf(const Method& method) {
    return absl::StrCat("/", method.service()->full_name(), "/", method.name());
  }

 private:
  // A call that fails at once.
  template <typename Reactor>
  class Refusal final : public Reactor {
   public:
    explicit Refusal(const absl::Status& why) { this->Finish(ToGrpc(why)); }

   private:
    void OnDone() override { delete this; }
  };
  template <typename Reactor, typename Request, typename Start>
  auto GuardedRequest(Start start) {
    return Guarded<Reactor>([start = std::move(start)](Context* context,
                                                       const Parsed<Request>* request,
                                                       auto... rest) -> Reactor* {
      if (!request->ok) return new Refusal<Reactor>(NotParsed<Request>());
      return start(context, &request->message, rest...);
    });
  }
  template <typename Reactor, typename Start>
  auto Guarded(Start start) {
    return [this, start = std::move(start)](Context* context, auto... rest) -> Reactor* {
      if (refuses_non_members_) {
        if (const absl::Status refused = CheckMember(CallContextOf(context)); !refused.ok())
          return new Refusal<Reactor>(refused);
      }
      return start(context, rest...);
    };
  }
  template <typename Request>
  const Method& MethodOf() const {
    int i = 0;
    while (service_.method(i)->input_type() != Request::descriptor()) ++i;
    return *service_.method(i);
  }
  void Add(const Method& method, grpc::internal::RpcMethod::RpcType type,
           grpc::internal::MethodHandler* handler) {
    const std::string& path = paths_.emplace_back(PathOf(method));
    AddMethod(new grpc::internal::RpcServiceMethod(path.c_str(), type, nullptr));
    MarkMethodCallback(static_cast<int>(paths_.size()) - 1, handler);
  }

  const google::protobuf::ServiceDescriptor& service_;
  std::deque<std::string> paths_;  // their addresses must not change
  bool refuses_non_members_ = false;
};

}  // namespace agmm
