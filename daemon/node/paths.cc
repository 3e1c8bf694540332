#include "daemon/node/paths.h"

#include "absl/strings/str_format.h"
#include "daemon/link/protocol.h"

namespace agmm {

void Paths::Make(const v1::ConnectPeers& peers, int self) {
  const uint64_t attempt = ++attempt_;
  asked_.clear();
  for (const v1::TransportPort& peer : peers.peers()) {
    if (peer.node() == self) continue;
    asked_[peer.node()] = peer.endpoint();
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
  for (const auto& [node, endpoint] : asked_) {
    transport_->Ping(node, [this, attempt, node = node](const absl::Status& status) {
      loop_->Post([this, attempt, node, status] { OnAnswer(attempt, node, status); });
    });
  }
  // Because the other node may not have connected yet, and then drops the question.
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
  const auto& [node, endpoint] = *asked_.begin();
  handlers_.broken(node,
                   absl::StrFormat("no answer from %s within %s; does every firewall let that port "
                                   "through (local.transport_ports)?",
                                   endpoint, absl::FormatDuration(kPathLimit)));
}

}  // namespace agmm
