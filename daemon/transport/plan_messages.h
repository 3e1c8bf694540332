// Messages of plans: sends them, admits them, and parks them until the receiver wants them.
// Progress thread only, except Send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <vector>

#include "daemon/transport/endpoints.h"
#include "daemon/transport/generation.h"
#include "daemon/transport/receives.h"
#include "kernels/device/transport.h"

namespace agmm::transport {

// Bounds of the messages that are parked for a peer. A peer is ahead of this node by the launches
// that have not arrived here, and by at most one epoch of each plan, because the next epoch waits
// for this node's credits. So there is at most one message for each hop from the peer to this node.
// A plan may have more hops (kMaxPlanSteps), but only some of them lead from one peer to one node.
// Large messages leave their bytes with the sender. The bytes of small (below 64 KiB) and pushed
// ones (kernels/device/lower.cc) are kept here, up to kMaxParkedBytesPerPeer, which suffices for
// the messages that arrive before a launch. Beyond the bounds the plan fails with the peer's name.
constexpr int kMaxParkedPerPeer = 1 << 16;
constexpr int64_t kMaxParkedBytesPerPeer = 64 << 20;

class PlanMessages {
 public:
  PlanMessages(Shared& shared, Endpoints* endpoints, Receives* receives, Receiver* receiver)
      : shared_(shared), endpoints_(endpoints), receives_(receives), receiver_(receiver) {}

  // Any thread.
  void Send(int node, const Message& message, int64_t bytes, Outgoing data, Done done);

  // Takes an active message. Returns UCS_INPROGRESS if `payload` is kept.
  ucs_status_t OnMessage(const void* header, size_t header_length, const Payload& payload);

  // Offers all parked messages again.
  void Resume();
  // Drops the parked messages of `scope`.
  void Drop(const Scope& scope);

 private:
  struct Received {
    int node = 0;
    uint64_t generation = 0;
    Message message;
    int64_t bytes = 0;
    Payload payload;
    std::vector<std::byte> copy = {};  // the payload's bytes once parked, unless it is a rendezvous
  };

  struct Peer {
    std::list<Received> parked;  // in the order of arrival
    int64_t bytes = 0;           // in their copies
  };

  // Offers a message to the receiver. Sets `used` if UCX has consumed the payload's descriptor.
  Receiver::Verdict Offer(const Received& received, bool* used);

  Shared& shared_;
  Endpoints* const endpoints_;
  Receives* const receives_;
  Receiver* const receiver_;
  std::map<int, Peer> peers_;  // by node
};

}  // namespace agmm::transport
