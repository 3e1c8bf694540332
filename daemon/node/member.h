// This daemon as a member of the world: joins, obeys commands, and drains between generations.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/config/config.h"
#include "daemon/link/link.h"
#include "daemon/link/pause.h"
#include "daemon/link/protocol.h"
#include "daemon/node/filler.h"
#include "daemon/node/paths.h"
#include "daemon/node/runner.h"
#include "daemon/node/store.h"
#include "daemon/observe/metrics.h"
#include "daemon/transport/ucx_transport.h"
#include "kernels/base/loop.h"

namespace agmm {

// Checks that a member with `config` can enter `world`. Errors: INVALID_ARGUMENT.
absl::Status CheckWorld(const Config& config, const v1::World& world);

// On the loop only, except Report.
class Member {
 public:
  struct Parts {
    Loop* loop = nullptr;
    Runner* runner = nullptr;
    TensorStore* store = nullptr;
    Filler* filler = nullptr;
    UcxTransport* transport = nullptr;  // null in a world of one node
    Metrics* metrics = nullptr;
    const PauseWatch* pauses = nullptr;  // of this daemon; null if not known
    std::vector<v1::DeviceHello> devices;
  };
  struct Handlers {
    // Called when the sequencer has refused this daemon for good.
    std::function<void(const absl::Status&)> refused = [](const absl::Status&) {};
    // Called when the sequencer has answered, so that calls can be forwarded to it.
    std::function<void(const std::shared_ptr<SequencerLink>&)> joined = [](const auto&) {};
    // Called when the sequencer was lost, and with it its knowledge of this daemon. The arguments
    // are ABORTED with PEER_LOST, which names the sequencer, and the next action.
    std::function<void(const absl::Status&, const std::string& next)> lost = [](const auto&,
                                                                                const auto&) {};
    // Reports the memory of earlier generations that clients still have mapped.
    std::function<void()> report_held = [] {};
    // The tensor is deleted, and clients of this node may have it mapped.
    std::function<void(uint64_t tensor_id)> end_mappings = [](uint64_t) {};
    // Called with true once this node is ready in a world without missing nodes.
    std::function<void(bool)> complete = [](bool) {};
  };
  Member(const Config& config, Parts parts);
  void SetHandlers(Handlers handlers) { handlers_ = std::move(handlers); }

  // Says hello on a new stream to the sequencer.
  void OnStream(std::shared_ptr<SequencerLink> link);
  void OnMessage(const v1::SequencerMessage& message);
  // Called before OnStreamEnded if the two ends of the stream do not know the same secret.
  void OnDenied(const std::string& why);
  // `given_up` says that the sequencer lives and ended the stream.
  void OnStreamEnded(const std::string& how, bool given_up);

  // Called when the transport's connection to `node` broke.
  void OnPeerBroken(int node, const std::string& reason);

  // Sends a report to the sequencer. Thread-safe.
  void Report(v1::Report report);

  // Ends all work for good, with `reason`; `drained` runs on the loop.
  void Stop(const absl::Status& reason, std::function<void()> drained);

  // Returns the time from a stream's end to the next attempt; infinite if the sequencer refused
  // this daemon for good.
  absl::Duration retry() const { return retry_; }
  // "node a (10.0.0.1:7101)".
  std::string sequencer() const { return config_.Describe(0); }
  // 16 random bytes that identify this process. On any thread.
  const std::string& incarnation() const { return incarnation_; }

 private:
  void OnRefusal(const v1::Refusal& refusal);
  // Handles a refusal that may be temporary.
  void RetryAfter(absl::Duration retry, const std::string& why);
  void OnWorld(const v1::World& world);
  void Obey(const v1::Command& command);
  // Returns the paths from this node to the others, with the kernel's counters.
  const std::vector<v1::NodePath>& PathsNow();
  // Ends the generation and all connections of the transport; then OnDrained enters the latest
  // world.
  void Drain(const absl::Status& reason);
  void Renew();
  void OnDrained();
  // Sends the collected reports with the generation that they belong to.
  void SendReports();
  // Called when all paths of the generation are established.
  void BeReady();

  const Config config_;
  const Parts parts_;
  const std::string incarnation_;
  Metrics::Counter* const stale_commands_;
  Handlers handlers_;
  std::shared_ptr<SequencerLink> link_;
  bool accepted_ = false;  // the sequencer has answered on this stream
  absl::Duration retry_ = kRetryJoin;
  std::string refusal_;           // the last temporary one
  uint64_t generation_ = 0;       // 0: none yet
  uint64_t last_generation_ = 0;  // the highest one seen
  v1::World world_;               // of generation_
  bool draining_ = false;         // until drained_ and renewed_
  bool drained_ = false;          // nothing runs
  bool renewed_ = true;           // the transport has no connections
  TransportPort port_;            // of the transport
  Paths paths_;
  // The counters of its connections, and until when they are fresh enough for the next question.
  std::vector<v1::NodePath> node_paths_;
  int64_t node_paths_until_ns_ = 0;
  bool forget_tensors_ = false;    // once drained, because the sequencer that placed them was lost
  std::optional<v1::World> next_;  // entered once drained
  std::vector<v1::Command> waiting_;  // commands of next_'s generation
  std::function<void()> stopped_;     // set by Stop
  v1::MemberMessage reports_;         // not yet sent
};

}  // namespace agmm
