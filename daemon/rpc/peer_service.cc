#include "daemon/rpc/peer_service.h"

#include <memory>
#include <string>
#include <utility>

#include "daemon/rpc/reply.h"
#include "daemon/world/member_stream.h"

namespace agmm {

grpc::ServerBidiReactor<v1::MemberMessage, v1::SequencerMessage>* PeerService::Join(
    grpc::CallbackServerContext* context) {
  MemberStream::Handlers handlers;
  handlers.message = [loop = loop_, sequencer = sequencer_](std::shared_ptr<MemberLink> link,
                                                            v1::MemberMessage message) {
    loop->Post([sequencer, link = std::move(link), message = std::move(message)] {
      sequencer->OnMessage(link, message);
    });
  };
  handlers.lost = [loop = loop_, sequencer = sequencer_](std::shared_ptr<MemberLink> link,
                                                         std::string how) {
    loop->Post([sequencer, link = std::move(link), how = std::move(how)] {
      sequencer->OnLost(link.get(), how);
    });
  };
  handlers.later = [loop = loop_](std::function<void()> task) { loop->PostLast(std::move(task)); };
  return MemberStream::Start(context, heartbeat_, std::move(handlers));
}

grpc::ServerUnaryReactor* PeerService::BeginAccess(grpc::CallbackServerContext* context,
                                                   const v1::BeginAccessRequest* request,
                                                   v1::BeginAccessResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->BeginAccess(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* PeerService::EndAccess(grpc::CallbackServerContext* context,
                                                 const v1::EndAccessRequest* request,
                                                 v1::EndAccessResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->EndAccess(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* PeerService::OpenedSession(grpc::CallbackServerContext* context,
                                                     const v1::OpenedSessionRequest* request,
                                                     v1::OpenedSessionResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->OpenedSession(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* PeerService::CloseSession(grpc::CallbackServerContext* context,
                                                    const v1::CloseSessionRequest* request,
                                                    v1::CloseSessionResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->CloseSession(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* PeerService::PollJob(grpc::CallbackServerContext* context,
                                               const v1::PollJobRequest* request,
                                               v1::PollJobResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->PollJob(call, *request, std::move(reply));
  });
}

}  // namespace agmm
