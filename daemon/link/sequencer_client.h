// A member's calls to the sequencer, both its own and the relayed calls of its clients.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "agmm/v1/cluster.grpc.pb.h"
#include "agmm/v1/peer.grpc.pb.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/link/pause.h"
#include "daemon/link/sequencer_calls.h"

namespace agmm {

// Calls carry the deadline, the ids and the principal of the caller. Errors keep their code,
// message and reason. Calls in progress end with ABORTED and PEER_LOST as soon as the stream to the
// sequencer ends.
class SequencerClient {
 public:
  // One call in progress.
  struct Call {
    grpc::ClientContext context;
    absl::Status lost;  // set by SetLost: the reason for cancelling the call
  };

  // `sequencer` is its name: "node a (10.0.0.1:7101)". `pauses` are this daemon's; null if not
  // known.
  SequencerClient(std::shared_ptr<grpc::Channel> channel, std::string sequencer,
                  const PauseWatch* pauses = nullptr);
  // Ends the calls in progress and waits for their ends.
  ~SequencerClient();

  // Called when the stream to the sequencer is up. Calls carry `token` (JoinProof::CallToken).
  void SetConnected(std::string token);
  // Called when the stream is down: ends the calls in progress with `reason`. New calls fail with
  // `reason` and, if it is not empty, `next`.
  void SetLost(const absl::Status& reason, const std::string& next);

  // Returns this node's own calls, for as long as this lives.
  SequencerCalls calls();

  // For calls of any method on `channel()`: use Enter before the call, and Result and then Leave at
  // its end.
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }
  // Prepares `call->context` for a call on behalf of `caller`. Errors: the reason why no call can
  // be made.
  absl::Status Enter(const CallContext& caller, const std::shared_ptr<Call>& call);
  // Returns the result of a call that ended with `status`.
  absl::Status Result(const Call& call, const grpc::Status& status);
  void Leave(const std::shared_ptr<Call>& call);

 private:
  // Makes `handler` call the sequencer; `start(context, request, response, done)` starts the call.
  template <typename Request, typename Response, typename Start>
  void Bind(Handler<Request, Response>* handler, Start start);

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string sequencer_;
  const PauseWatch* const pauses_;
  const std::unique_ptr<v1::ClusterService::Stub> cluster_;
  const std::unique_ptr<v1::TensorService::Stub> tensor_;
  const std::unique_ptr<v1::PeerService::Stub> peer_;

  std::mutex mutex_;  // guards what follows, and Call::lost
  std::condition_variable left_;
  std::string token_;
  absl::Status down_;  // OK while the stream is up; else why no call can be made
  bool stopping_ = false;
  std::set<std::shared_ptr<Call>> under_way_;
};

}  // namespace agmm
