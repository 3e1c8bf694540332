// Keeps a stream to the sequencer's daemon: connects, and again whenever it ends.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "agmm/v1/peer.grpc.pb.h"
#include "daemon/world/heartbeat.h"
#include "daemon/world/join_stream.h"
#include "daemon/world/loop.h"
#include "daemon/world/member.h"
#include "daemon/world/status_view.h"

namespace agmm {

// A channel to the daemon at `address` that reconnects 100 ms after a failure, at first.
std::shared_ptr<grpc::Channel> PeerChannel(const std::string& address);

class Join {
 public:
  // All outlive this.
  Join(std::shared_ptr<grpc::Channel> channel, Loop* loop, Heartbeat* heartbeat, Member* member,
       const StatusView* view);
  // Ends the stream and waits for its end; the loop must still run. On another thread than the
  // loop.
  ~Join();
  // `taken` takes, on any thread, what becomes of forwarded jobs. Before Start.
  void OnOutcomes(
      std::function<void(google::protobuf::RepeatedPtrField<v1::ForwardedOutcome>*)> taken) {
    outcomes_ = std::move(taken);
  }
  // On the loop.
  void Start();

 private:
  const std::unique_ptr<v1::PeerService::Stub> stub_;
  Loop* const loop_;
  Heartbeat* const heartbeat_;
  Member* const member_;
  const StatusView* const view_;
  std::function<void(google::protobuf::RepeatedPtrField<v1::ForwardedOutcome>*)> outcomes_;
  std::shared_ptr<JoinStream> stream_;  // on the loop
  std::string last_how_;                // on the loop
  bool stopping_ = false;               // on the loop
  Loop::Timer retry_;                   // on the loop
  std::mutex mutex_;
  std::condition_variable ended_;
  bool running_ = false;  // a stream's end has yet to come
};

}  // namespace agmm
