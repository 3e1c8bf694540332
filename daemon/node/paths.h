// The transport's paths from this node to the others of a generation. A path is established once
// bytes have travelled on it in both directions, because a firewall may admit the world's port and
// block the transport's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/transport/ucx_transport.h"
#include "kernels/base/loop.h"
#include "kernels/base/socket_address.h"

namespace agmm {

// On the loop only.
class Paths {
 public:
  struct Handlers {
    std::function<void()> made;  // all of them
    std::function<void(int node, const std::string& why)> broken;
  };
  // All arguments must outlive this, and this must outlive the loop's run.
  Paths(Loop* loop, UcxTransport* transport, Handlers handlers)
      : loop_(loop), transport_(transport), handlers_(std::move(handlers)) {}

  // Establishes the paths to all of `peers` except `self`. Requires that the transport was renewed
  // since the last call, and has the generation of `peers`. Calls one of the handlers later.
  void Make(const v1::ConnectPeers& peers, int self);
  // The address at which the node receives bytes, from the last Make; empty for a node that Make
  // did not name.
  std::optional<SocketAddress> address(int node) const;
  // Cancels the last Make: no handler runs for it afterwards.
  void Forget() { ++attempt_; }

 private:
  // Asks the nodes that have not answered, repeatedly.
  void Ask(uint64_t attempt);
  void OnAnswer(uint64_t attempt, int node, const absl::Status& status);
  void GiveUp(uint64_t attempt);

  Loop* const loop_;
  UcxTransport* const transport_;
  const Handlers handlers_;
  uint64_t attempt_ = 0;
  std::map<int, std::string> endpoints_;
  std::set<int> asked_;  // the nodes that have not answered yet
};

}  // namespace agmm
