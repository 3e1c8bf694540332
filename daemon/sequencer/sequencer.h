// Membership at the sequencer: the nodes that have joined, and the generation of the world.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "agmm/v1/cluster.pb.h"
#include "daemon/config/config.h"
#include "daemon/link/link.h"
#include "daemon/link/pause.h"
#include "daemon/observe/metrics.h"
#include "daemon/sequencer/members.h"
#include "kernels/base/random.h"

namespace agmm {

// Returns the first field of `hello` that does not fit a member of `config`'s world; empty if all
// fit.
v1::Refusal CheckHello(const Config& config, const v1::Hello& hello);

// Touched on the loop only.
class Sequencer final : public Members {
 public:
  // `incarnation` is that of the process's member, in hex.
  Sequencer(const Config& config, Metrics* metrics, std::string incarnation = RandomHex(16));

  // Listeners are called in this order when the world is ready, and in reverse order at the end of
  // a generation. Must be set before the first message.
  void SetListeners(std::vector<WorldListener*> listeners) { listeners_ = std::move(listeners); }
  // Called after a node was lost, and after the listeners.
  void OnNodeLost(std::function<void(int node)> handler) { on_node_lost_ = std::move(handler); }
  // Called when the world becomes complete or incomplete.
  void OnReadyChanged(std::function<void(bool ready)> handler) { on_ready_ = std::move(handler); }
  // `pauses`, which may be null, records pauses of this daemon, which explain the loss of a node
  // better than the end of its stream. Must be set before the first message.
  void SetPauses(const PauseWatch* pauses) { pauses_ = pauses; }

  // Called by the streams.
  void OnMessage(const std::shared_ptr<MemberLink>& link, const v1::MemberMessage& message);
  void OnLost(const MemberLink* link, const std::string& how);
  // Ends the generation, because the daemon stops. Streams that end later are not counted as
  // losses.
  void Stop();

  // Fills in the world, nodes and devices, but not the use of the heaps.
  void FillStatus(v1::GetStatusResponse* status) const;

  const std::string& incarnation() const override { return incarnation_; }
  uint64_t generation() const override { return generation_; }
  // OK if every node has joined and is ready; else UNAVAILABLE with WORLD_INCOMPLETE, which names
  // the missing nodes.
  absl::Status Complete() const;
  absl::Status Ready(const std::vector<int>& ranks) const override;
  int node_count() const override { return static_cast<int>(nodes_.size()); }
  std::string node_name(int node) const override { return config_.nodes[node].name; }
  const std::vector<WorldRank>& ranks() const override { return ranks_; }
  void Send(int node, v1::Command command) override;
  void Lose(int node, const std::string& why) override;

 private:
  struct Node {
    std::shared_ptr<MemberLink> link;  // null: missing
    std::string refused;  // why the last daemon was refused; empty if one has joined since
    v1::Hello hello;
    v1::NodeUsage usage;     // from its last heartbeat
    bool drained = false;    // into this generation
    v1::TransportPort port;  // once drained
    bool ready = false;      // connected to all others in this generation
    std::string broken;      // why it was dropped, until it is ready again
  };

  int NodeOf(const MemberLink* link) const;  // -1: none
  void OnHello(const std::shared_ptr<MemberLink>& link, const v1::Hello& hello);
  void OnWorldDrained(int node, const v1::WorldDrained& drained);
  void OnWorldReady(int node);
  void OnPeerBroken(int node, const v1::PeerBroken& broken);
  // Removes a lost node, and ends the generation if one had begun.
  void Drop(int node, const std::string& how);
  void EndGeneration(const std::vector<int>& lost, const std::string& why);
  // Sends the world to all nodes that have joined.
  void SendWorld();
  bool AllJoined() const;
  // Returns the ranks of the present nodes: "ranks 0-3".
  std::string UsableRanks() const;
  // Returns UNAVAILABLE with WORLD_INCOMPLETE, naming the missing and the unready nodes among those
  // for which `needs(node)` holds; OK if all of these are ready.
  absl::Status WaitingFor(absl::FunctionRef<bool(int node)> needs) const;
  void SetRanks();

  const Config config_;
  const std::string incarnation_;
  Metrics::Counter* const stale_reports_;
  Metrics::Counter* const nodes_lost_;
  const PauseWatch* pauses_ = nullptr;
  std::vector<WorldListener*> listeners_;
  std::function<void(int)> on_node_lost_ = [](int) {};
  std::function<void(bool)> on_ready_ = [](bool) {};
  std::vector<Node> nodes_;
  std::vector<WorldRank> ranks_;
  uint64_t generation_ = 0;  // 0 if the world was never complete
  uint64_t seen_ = 0;        // the highest generation that any member has seen
  std::string ended_;        // why the last generation ended; empty before that
  bool open_ = false;        // all present nodes are ready in this generation
  bool stopping_ = false;
};

}  // namespace agmm
