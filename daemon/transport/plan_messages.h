// Messages of plans: sent, admitted, parked until their receiver wants them. Progress thread only,
// but for Send.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <vector>

#include "daemon/transport/endpoints.h"
#include "daemon/transport/receives.h"
#include "daemon/transport/world.h"

namespace agmm::transport {

// What a peer can be ahead by: the launches that it has and this node has not, and of each plan one
// epoch at most, for what it would send in the next waits for credits of this one. That is as many
// messages as the hops of the plan's schedule, which are bounded by this at admission. All of them
// have places of their own, in workspaces that are lent at the same time, so that their bytes are
// bounded by this node's heaps: too much to set aside. Large messages leave their bytes with the
// sender; of small ones, below 64 KiB, and of the first large ones of a plan, which are pushed
// (kernels/cpu/program.cc), so much is kept as comes in while a launch is on its way. A plan that
// is further ahead than that is failed by name.
constexpr int kMaxParkedPerPeer = 1 << 16;
constexpr int64_t kMaxParkedBytesPerPeer = 64 << 20;

class PlanMessages {
 public:
  PlanMessages(UcxWorker* worker, const CurrentWorld& worlds, Endpoints* endpoints,
               Receives* receives, Receiver* receiver, Stats* stats);

  // Any thread. `data` lies in memory or is a copy.
  void Send(int node, const Message& message, int64_t bytes, Outgoing data, Done done);

  // An active message came. Returns UCS_INPROGRESS where `payload` is kept.
  ucs_status_t OnMessage(const void* header, size_t header_length, const Payload& payload);

  // Offers what is parked again.
  void Resume();
  // Drops what is parked of another generation than the world's.
  void DropStale();
  // Drops what is parked of `node` and as old as `generation`.
  void DropNode(int node, uint64_t generation);
  void DropAll();

 private:
  struct Parked {
    uint64_t generation = 0;
    Message message;
    int64_t bytes = 0;
    Payload payload;
    std::vector<std::byte> copy;  // what payload.data points to, unless it is a rendezvous
  };

  struct Peer {
    std::list<Parked> parked;  // in the order they came
    int64_t bytes = 0;         // in their copies
  };

  void DropIf(int node, const std::function<bool(const Parked&)>& drop);
  // Lets the receiver decide. True if UCX uses the payload's descriptor up.
  Receiver::Verdict Offer(int node, uint64_t generation, const Message& message, int64_t bytes,
                          const Payload& payload, bool* used);

  UcxWorker* const worker_;
  const CurrentWorld& worlds_;
  Endpoints* const endpoints_;
  Receives* const receives_;
  Receiver* const receiver_;
  Stats* const stats_;
  std::map<int, Peer> peers_;  // by node
};

}  // namespace agmm::transport
