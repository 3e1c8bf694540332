#include "daemon/node/paths.h"

#include "absl/strings/str_format.h"
#include "daemon/link/protocol.h"
#include "kernels/base/host_port.h"

namespace agmm {

void Paths::Make(const v1::ConnectPeers& peers, int self) {
  const uint64_t attempt = ++attempt_;
  endpoints_.clear();
  asked_.clear();
  for (const v1::TransportPort& peer : peers.peers()) {
    if (peer.node() == self) continue;
    endpoints_[peer.node()] = peer.endpoint();
    asked_.insert(peer.node());
    if (const absl::Status status = transport_->Connect(peer.node(), peer.address()); !status.ok())
      return handlers_.broken(peer.node(), std::string(status.message()));
  }
  Ask(attempt);
  loop_->PostAfter(kPathLimit, [this, attempt] { GiveUp(attempt); });
}

void Paths::Ask(uint64_t attempt) {
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

void Paths::OnAnswer(uint64_t attempt, int node, const absl::Status& status) {
  // The transport reports a broken connection by itself.
  if (attempt != attempt_ || !status.ok() || asked_.erase(node) == 0 || !asked_.empty()) return;
  Ask(attempt);
}

void Paths::GiveUp(uint64_t attempt) {
  if (attempt != attempt_) return;
  ++attempt_;
  const int node = *asked_.begin();
  handlers_.broken(node, absl::StrFormat("no bytes came from its transport at %s within %s",
                                         endpoints_[node], absl::FormatDuration(kPathLimit)));
}

std::optional<SocketAddress> Paths::address(int node) const {
  const auto it = endpoints_.find(node);
  if (it == endpoints_.end()) return std::nullopt;
  const absl::StatusOr<HostPort> at = ParseHostPort(it->second, 1);
  std::optional<SocketAddress> address = at.ok() ? SocketAddress::OfIp(at->host) : std::nullopt;
  if (address.has_value()) address->set_port(at->port);
  return address;
}

}  // namespace agmm
