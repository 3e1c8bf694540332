// What the sequencer's daemon serves to the other daemons.
#pragma once

#include "agmm/v1/peer.grpc.pb.h"
#include "daemon/control.h"
#include "daemon/world/heartbeat.h"
#include "daemon/world/loop.h"
#include "daemon/world/sequencer.h"

namespace agmm {

class PeerService final : public v1::PeerService::CallbackService {
 public:
  // All outlive the server.
  PeerService(Control* control, Loop* loop, Sequencer* sequencer, Heartbeat* heartbeat)
      : control_(control), loop_(loop), sequencer_(sequencer), heartbeat_(heartbeat) {}

  grpc::ServerBidiReactor<v1::MemberMessage, v1::SequencerMessage>* Join(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* BeginAccess(grpc::CallbackServerContext* context,
                                        const v1::BeginAccessRequest* request,
                                        v1::BeginAccessResponse* response) override;
  grpc::ServerUnaryReactor* EndAccess(grpc::CallbackServerContext* context,
                                      const v1::EndAccessRequest* request,
                                      v1::EndAccessResponse* response) override;
  grpc::ServerUnaryReactor* OpenedSession(grpc::CallbackServerContext* context,
                                          const v1::OpenedSessionRequest* request,
                                          v1::OpenedSessionResponse* response) override;
  grpc::ServerUnaryReactor* CloseSession(grpc::CallbackServerContext* context,
                                         const v1::CloseSessionRequest* request,
                                         v1::CloseSessionResponse* response) override;
  grpc::ServerUnaryReactor* PollJob(grpc::CallbackServerContext* context,
                                    const v1::PollJobRequest* request,
                                    v1::PollJobResponse* response) override;

 private:
  Control* const control_;
  Loop* const loop_;
  Sequencer* const sequencer_;
  Heartbeat* const heartbeat_;
};

}  // namespace agmm
