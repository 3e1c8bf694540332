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
#include "absl/strings/str_format.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/link/protocol.h"
#include "daemon/transport/ucx_transport.h"
#include "kernels/base/host_port.h"
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
  void Make(const v1::ConnectPeers& peers, int self) {
    const uint64_t attempt = ++attempt_;
    endpoints_.clear();
    asked_.clear();
    for (const v1::TransportPort& peer : peers.peers()) {
      if (peer.node() == self) continue;
      endpoints_[peer.node()] = peer.endpoint();
      asked_.insert(peer.node());
      if (const absl::Status status = transport_->Connect(peer.node(), peer.address());
          !status.ok())
        return handlers_.broken(peer.node(), std::string(status.message()));
    }
    Ask(attempt);
    loop_->PostAfter(kPathLimit, [this, attempt] { GiveUp(attempt); });
  }
  // The address at which the node receives bytes, from the last Make; empty for a node that Make
  // did not name.
  std::optional<SocketAddress> address(int node) const {
    const auto it = endpoints_.find(node);
    if (it == endpoints_.end()) return std::nullopt;
    const absl::StatusOr<HostPort> at = ParseHostPort(it->second, 1);
    std::optional<SocketAddress> address = at.ok() ? SocketAddress::OfIp(at->host) : std::nullopt;
    if (address.has_value()) address->set_port(at->port);
    return address;
  }
  // Cancels the last Make: no handler runs for it afterwards.
  void Forget() { ++attempt_; }

 private:
  // Asks the nodes that have not answered, repeatedly.
  void Ask(uint64_t attempt) {
    if (attempt != attempt_) return;
    if (asked_.empty()) {
      ++attempt_;
      return handlers_.made();
    }
    for (const int node : asked_) {
      transport_->Ping(node, [this, attempt, node](const absl::Status& status) {
        loop_->Post([this, attempt, node, status] { OnAnswer(attempt, node, status); });
      });
    }
    // Asks again, because a node that has not connected yet drops the question.
    loop_->PostAfter(kAskPathAgain, [this, attempt] { Ask(attempt); });
  }
  void OnAnswer(uint64_t attempt, int node, const absl::Status& status) {
    // The transport reports a broken connection by itself.
    if (attempt != attempt_ || !status.ok() || asked_.erase(node) == 0 || !asked_.empty()) return;
    Ask(attempt);
  }
  void GiveUp(uint64_t attempt) {
    if (attempt != attempt_) return;
    ++attempt_;
    const int node = *asked_.begin();
    handlers_.broken(node, absl::StrFormat("no bytes came from its transport at %s within %s",
                                           endpoints_[node], absl::FormatDuration(kPathLimit)));
  }

  Loop* const loop_;
  UcxTransport* const transport_;
  const Handlers handlers_;
  uint64_t attempt_ = 0;
  std::map<int, std::string> endpoints_;
  std::set<int> asked_;  // the nodes that have not answered yet
};

}  // namespace agmm
