// The sequencer's end of a Join call.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "daemon/world/heartbeat.h"
#include "daemon/world/link.h"
#include "daemon/world/out_queue.h"

namespace agmm {

// Lives until the call is done and nobody holds it.
class MemberStream final : public grpc::ServerBidiReactor<v1::MemberMessage, v1::SequencerMessage>,
                           public MemberLink,
                           public Pulse,
                           public std::enable_shared_from_this<MemberStream> {
 public:
  // Called on gRPC's and the heartbeat's threads.
  struct Handlers {
    std::function<void(std::shared_ptr<MemberLink>, v1::MemberMessage)> message;
    // At least once, and behind the last message. `how`: "its stream broke".
    std::function<void(std::shared_ptr<MemberLink>, std::string how)> lost;
    // Runs what it is given behind what is being done: then all of it travels in one message.
    std::function<void(std::function<void()>)> later;
  };
  static grpc::ServerBidiReactor<v1::MemberMessage, v1::SequencerMessage>* Start(
      grpc::CallbackServerContext* context, Heartbeat* heartbeat, Handlers handlers);

  void Send(v1::SequencerMessage message) override;
  void Refuse(v1::Refusal refusal) override;
  void Close() override { End("it was closed", /*cancel=*/true); }
  void Judge(int64_t now_ns) override;
  void Beat(bool due) override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override { End("its stream broke", /*cancel=*/false); }
  void OnDone() override;

 private:
  MemberStream(grpc::CallbackServerContext* context, Handlers handlers);
  void Write(const v1::SequencerMessage* message) {
    if (message != nullptr) StartWrite(message);
  }
  // `cancel`: the peer may have stopped reading; an end in good order would wait for it.
  void End(const std::string& how, bool cancel);
  void FinishIfQuiet();

  const Handlers handlers_;
  v1::MemberMessage in_;
  OutQueue<v1::SequencerMessage> queue_;
  std::atomic<int64_t> heard_ns_;
  std::atomic<bool> flushes_{false};            // a flush is on its way
  grpc::CallbackServerContext* const context_;  // until done
  std::shared_ptr<MemberStream> self_;          // until done
};

}  // namespace agmm
