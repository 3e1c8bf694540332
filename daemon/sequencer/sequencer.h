// The one daemon that orders: who belongs to the world, who is there, and which generation it is.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agmm/v1/cluster.pb.h"
#include "daemon/config/config.h"
#include "daemon/observe/metrics.h"
#include "daemon/world/link.h"
#include "daemon/world/members.h"
#include "kernels/base/random.h"

namespace agmm {

// The first field of `hello` that does not fit a member of `config`'s world; no field: it fits.
v1::Refusal CheckHello(const Config& config, const v1::Hello& hello);

// On the loop only.
class Sequencer final : public Members {
 public:
  // `incarnation` is the process's, as its member says it, in hex.
  Sequencer(const Config& config, Metrics* metrics, std::string incarnation = RandomHex(16));

  // In the order in which they hear of readiness; of an end in the reverse order. Before the first
  // message.
  void SetListeners(std::vector<WorldListener*> listeners) { listeners_ = std::move(listeners); }
  // A node went away; after the listeners have heard of it.
  void OnNodeLost(std::function<void(int node)> handler) { on_node_lost_ = std::move(handler); }
  // Jobs that a member forwards; their outcomes go back by its link.
  void OnForwardedJobs(
      std::function<void(const std::shared_ptr<MemberLink>&, const v1::ForwardedJobs&)> handler) {
    on_jobs_ = std::move(handler);
  }
  // Whether jobs can run, whenever that changes.
  void OnReadyChanged(std::function<void(bool ready)> handler) { on_ready_ = std::move(handler); }

  // From the streams.
  void OnMessage(const std::shared_ptr<MemberLink>& link, const v1::MemberMessage& message);
  void OnLost(const MemberLink* link, const std::string& how);
  // The daemon stops: what waits is answered, and streams that end from now on are nobody's loss.
  void Stop();

  // World, nodes and their devices, without what lies in the heaps.
  void FillStatus(v1::GetStatusResponse* status) const;

  const std::string& incarnation() const override { return incarnation_; }
  uint64_t generation() const override { return generation_; }
  absl::Status Complete() const override;
  int node_count() const override { return static_cast<int>(nodes_.size()); }
  std::string node_name(int node) const override { return config_.nodes[node].name; }
  const std::vector<WorldRank>& ranks() const override { return ranks_; }
  void Send(int node, v1::Command command) override;
  void Lose(int node, const std::string& why) override;

 private:
  struct Node {
    std::shared_ptr<MemberLink> link;  // null: missing
    std::string refused;  // why the last daemon that came for it was; empty: it has joined since
    v1::Hello hello;
    v1::NodeUsage usage;  // of its last heartbeat
    bool ready = false;   // drained and connected in this generation
  };

  int NodeOf(const MemberLink* link) const;  // -1: none
  void OnHello(const std::shared_ptr<MemberLink>& link, const v1::Hello& hello);
  void OnWorldReady(int node);
  void OnPeerBroken(int node, const v1::PeerBroken& broken);
  // The node is gone: ends the generation, if one had begun.
  void Drop(int node, const std::string& how);
  void EndGeneration(const std::vector<int>& lost, const absl::Status& reason);
  // Tells all who are there.
  void SendWorld();
  bool AllJoined() const;
  std::string Describe(int node) const;  // "node b (127.0.0.1:7102)"
  void SetRanks();

  const Config config_;
  const std::string incarnation_;
  Metrics::Counter* const stale_reports_;
  Metrics::Counter* const nodes_lost_;
  std::vector<WorldListener*> listeners_;
  std::function<void(int)> on_node_lost_ = [](int) {};
  std::function<void(const std::shared_ptr<MemberLink>&, const v1::ForwardedJobs&)> on_jobs_ =
      [](const auto&, const auto&) {};
  std::function<void(bool)> on_ready_ = [](bool) {};
  std::vector<Node> nodes_;
  std::vector<WorldRank> ranks_;
  uint64_t generation_ = 0;  // 0: not all nodes have ever been there
  uint64_t seen_ = 0;        // the highest generation that any member has seen
  bool complete_ = false;    // all ready in this generation
  bool stopping_ = false;
};

}  // namespace agmm
