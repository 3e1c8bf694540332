// The member's end of a Join call.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "agmm/v1/peer.grpc.pb.h"
#include "daemon/world/heartbeat.h"
#include "daemon/world/link.h"
#include "daemon/world/out_queue.h"

namespace agmm {

// One attempt: waits for the connection, then lives as long as the call. Lives until the call is
// done and nobody holds it.
class JoinStream final : public grpc::ClientBidiReactor<v1::MemberMessage, v1::SequencerMessage>,
                         public SequencerLink,
                         public Pulse,
                         public std::enable_shared_from_this<JoinStream> {
 public:
  // Called on gRPC's threads, `usage` on the heartbeat's.
  struct Handlers {
    // The first, and those that say more than that the sequencer is there.
    std::function<void(v1::SequencerMessage)> message;
    // Of jobs that were forwarded; before the rest of their message.
    std::function<void(google::protobuf::RepeatedPtrField<v1::ForwardedOutcome>*)> outcomes;
    // Once, the last call. `how`: "its stream broke (UNAVAILABLE: Socket closed)".
    std::function<void(std::string how)> ended;
    // What this node holds, for its heartbeats. Any thread.
    std::function<v1::NodeUsage()> usage;
  };
  static std::shared_ptr<JoinStream> Start(v1::PeerService::Stub* stub, Heartbeat* heartbeat,
                                           Handlers handlers);

  void Send(v1::MemberMessage message) override { Write(queue_.Push(std::move(message))); }
  void Close() { End("it was closed"); }
  void Judge(int64_t now_ns) override;
  void Beat(bool due) override;

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  explicit JoinStream(Handlers handlers) : handlers_(std::move(handlers)) {}
  void Write(const v1::MemberMessage* message) {
    if (message != nullptr) StartWrite(message);
  }
  void End(const std::string& how);
  void LetGoIfQuiet();

  const Handlers handlers_;
  grpc::ClientContext context_;
  v1::SequencerMessage in_;
  OutQueue<v1::MemberMessage> queue_;
  std::atomic<int64_t> heard_ns_{0};  // 0: not connected yet
  std::optional<std::string>
      told_;  // the usage of the last beat that had one; on the heartbeat's thread
  std::mutex mutex_;
  std::string how_;                   // the first reason
  std::shared_ptr<JoinStream> self_;  // until done
};

}  // namespace agmm
