#include "proto/channel/channel.h"

#include <grpcpp/generic/generic_stub.h>

namespace agmm {
namespace {

// A channel starts gRPC's callback threads with its first callback call and releases them when it
// is destroyed. This channel is never destroyed. A channel without credentials fails its calls at
// once.
void KeepCallbackThreads() {
  // Kept reachable, so that leak checkers find it.
  [[gnu::used]] static auto* const keeper = [] {
    auto* channel =
        new std::shared_ptr<grpc::Channel>(grpc::CreateChannel("unused", /*creds=*/nullptr));
    struct Call {
      grpc::ClientContext context;
      const grpc::Slice nothing{""};
      grpc::ByteBuffer request{&nothing, 1}, response;
    };
    auto call = std::make_shared<Call>();
    grpc::GenericStub(*channel).UnaryCall(&call->context, "/agmm/None", {}, &call->request,
                                          &call->response, [call](const grpc::Status&) {});
    return channel;
  }();
}

}  // namespace

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& target,
                                           grpc::ChannelArguments arguments) {
  KeepCallbackThreads();
  // With a shared subchannel pool, a new attempt would wait for the back-off of another channel.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace agmm
