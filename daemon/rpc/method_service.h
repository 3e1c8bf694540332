// gRPC services whose methods are added one by one.
#pragma once

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/impl/service_type.h>

#include <deque>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/link/outgoing.h"
#include "daemon/link/parsed.h"
#include "daemon/rpc/caller_check.h"
#include "daemon/rpc/reply.h"

namespace agmm {

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
  void RefuseStrangers() { refuses_strangers_ = true; }

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
      if (refuses_strangers_) {
        if (const absl::Status stranger = CheckMember(CallContextOf(context)); !stranger.ok())
          return new Refusal<Reactor>(stranger);
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
  bool refuses_strangers_ = false;
};

}  // namespace agmm
