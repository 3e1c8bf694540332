// Keeps a stream to the sequencer's daemon, and reconnects whenever it ends.
#pragma once

#include <grpcpp/grpcpp.h>

#include <future>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "agmm/v1/peer.grpc.pb.h"
#include "daemon/link/dial.h"
#include "daemon/link/heartbeat_thread.h"
#include "daemon/link/udp_heartbeats.h"
#include "daemon/node/member.h"
#include "daemon/node/status_view.h"
#include "kernels/base/loop.h"

namespace agmm {

// Returns a channel to the daemon at `address` that first reconnects 100 ms after a failure.
std::shared_ptr<grpc::Channel> PeerChannel(const std::string& address);

class JoinStream {
 public:
  // Requires that all arguments outlive this, and that `view` and `udp_heartbeats` outlive the last
  // heartbeats of its streams. `channel` leads to `address`; `secret` is the world's.
  JoinStream(std::string address, std::shared_ptr<grpc::Channel> channel, std::string secret,
             Loop* loop, HeartbeatThread* heartbeats, UdpHeartbeats* udp_heartbeats, Member* member,
             const StatusView* view);
  ~JoinStream() { Stop(); }
  // Ends the stream and waits for its end; the loop must still run. Must not be called on the loop.
  // Idempotent.
  void Stop();
  // On the loop.
  void Start();
  // The token that this member's calls carry while the stream lives; empty before. On the loop
  // only.
  const std::string& token() const { return token_; }

 private:
  class MemberEnd;

  // Called on the loop. `end` is the reason, such as "its stream broke"; `detail` is gRPC's own
  // text.
  void OnEnded(const absl::Status& end, bool given_up, const std::string& detail);

  const std::string address_;
  const std::unique_ptr<v1::PeerService::Stub> stub_;
  const std::string secret_;
  Loop* const loop_;
  HeartbeatThread* const heartbeats_;
  UdpHeartbeats* const udp_heartbeats_;
  Member* const member_;
  const StatusView* const view_;
  // On the loop.
  std::shared_ptr<MemberEnd> stream_;  // until it has ended
  std::string token_, last_end_;
  Dialer dialer_;
  Loop::Timer retry_;
  Loop::Timer patience_;                        // until the sequencer's first message
  std::shared_ptr<std::promise<void>> closed_;  // set by Stop: no stream starts any more
  bool stopped_ = false;                        // not on the loop
};

}  // namespace agmm
