// This daemon as a member of the world: joins, obeys commands, and starts afresh with each
// generation.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/config/config.h"
#include "daemon/job/runner.h"
#include "daemon/observe/metrics.h"
#include "daemon/tensor/filler.h"
#include "daemon/tensor/store.h"
#include "daemon/transport/ucx_transport.h"
#include "daemon/world/link.h"
#include "daemon/world/loop.h"
#include "daemon/world/protocol.h"

namespace agmm {

// That `world` is one that a member with `config` can enter. Errors: INVALID_ARGUMENT.
absl::Status CheckWorld(const Config& config, const v1::World& world);

// On the loop only, but for Report.
class Member {
 public:
  struct Parts {
    Loop* loop = nullptr;
    Runner* runner = nullptr;
    TensorStore* store = nullptr;
    Filler* filler = nullptr;
    UcxTransport* transport = nullptr;  // null in a world of one node
    Metrics* metrics = nullptr;
    std::vector<v1::DeviceHello> devices;
  };
  struct Handlers {
    // The sequencer does not want this daemon, and will not.
    std::function<void(const absl::Status&)> refused = [](const absl::Status&) {};
    // The sequencer has answered; forwarded calls can be made.
    std::function<void(const std::shared_ptr<SequencerLink>&)> joined = [](const auto&) {};
    // The sequencer was lost: ABORTED with PEER_LOST, naming it, and what is done about it. What it
    // knew of this daemon is void.
    std::function<void(const absl::Status&, const std::string& next)> lost = [](const auto&,
                                                                                const auto&) {};
    // What clients still have mapped of the generations before.
    std::function<std::vector<v1::MemoryHeld>()> held = [] {
      return std::vector<v1::MemoryHeld>();
    };
    // Whether this node has done its part for a world in which nobody is missing.
    std::function<void(bool)> complete = [](bool) {};
  };
  Member(const Config& config, Parts parts);
  void SetHandlers(Handlers handlers) { handlers_ = std::move(handlers); }

  // A stream to the sequencer is there, or will be: says hello on it.
  void OnStream(std::shared_ptr<SequencerLink> link);
  void OnMessage(const v1::SequencerMessage& message);
  // The stream ended.
  void OnStreamEnded(const std::string& how);

  // The transport's connection to `node` broke. On the loop.
  void OnPeerBroken(int node, const std::string& reason);

  // What the runner and the filler answer; thread-safe.
  void Report(v1::Report report);

  // Ends everything with `reason` for good; `drained` runs on the loop.
  void Stop(const absl::Status& reason, std::function<void()> drained);

  // How long after a stream's end the next is tried: never where the sequencer does not want this
  // daemon.
  absl::Duration retry() const { return retry_; }
  // 16 random bytes, of this process. On any thread.
  const std::string& incarnation() const { return incarnation_; }

 private:
  void OnRefusal(const v1::Refusal& refusal);
  void OnWorld(const v1::World& world);
  void Obey(const v1::Command& command);
  // Ends the generation; when all is quiet takes up the world that came last.
  void Drain(const absl::Status& reason);
  void OnDrained();
  // What was reported since goes out, of the generation that it is of.
  void SendReports();
  // Connects to all others. False when that cannot be, which the sequencer is told.
  bool Enter(const v1::World& world);
  // Nothing of an older generation runs or arrives here any more.
  void BeReady();
  // Cuts the connections to the nodes of the old world that are not in `world`, so that no drain
  // waits for them. Returns those nodes.
  std::vector<int> CutLost(const v1::World& world);
  std::string Describe(int node) const;

  const Config config_;
  const Parts parts_;
  const std::string incarnation_;
  Metrics::Counter* const stale_commands_;
  Handlers handlers_;
  std::shared_ptr<SequencerLink> link_;
  bool accepted_ = false;  // the sequencer has answered on this stream
  absl::Duration retry_ = kRetryJoin;
  std::string refusal_;           // why the sequencer did not take it the last time
  uint64_t generation_ = 0;       // 0: in none
  uint64_t last_generation_ = 0;  // the highest one seen
  v1::World world_;               // of generation_
  bool draining_ = false;
  bool forget_tensors_ = false;       // once drained: the sequencer that placed them is gone
  std::optional<v1::World> next_;     // to be entered once drained
  std::vector<v1::Command> waiting_;  // of next_'s generation
  std::function<void()> stopped_;     // set by Stop
  v1::MemberMessage reports_;         // on their way to the link
};

}  // namespace agmm
