// This node's part of every plan and job: plans for its own ranks, owns their executors, runs
// launches in command order, and accepts the messages of other nodes for them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/node/call_queue.h"
#include "daemon/node/local_launches.h"
#include "daemon/node/local_plan.h"
#include "daemon/observe/metrics.h"
#include "kernels/base/loop.h"
#include "kernels/device/device.h"
#include "kernels/device/transport.h"

namespace agmm {

// Commands come on the daemon's loop, messages on the transport's thread; reports may leave on any
// thread.
class Runner final : public Receiver {
 public:
  using ReportFn = std::function<void(v1::Report)>;

  // Devices are world ranks first_rank, first_rank + 1, ...; node_of_rank covers the world.
  // `report` receives the answers to the commands.
  Runner(int self_node, int first_rank, std::vector<LocalDevice> devices,
         std::vector<int> node_of_rank, Metrics* metrics, ReportFn report);
  ~Runner() override;

  // RESOURCE_EXHAUSTED if its threads could not be started; then no command may be given.
  absl::Status status() const;

  // Must be called before the first command. `transport` is null in a world of one node.
  // `offer_again` makes it offer the parked messages again; called after a launch that may accept
  // one.
  void SetTransport(Transport* transport, std::function<void()> offer_again);

  void Prepare(const v1::PreparePlan& command);
  void Launch(const v1::LaunchJob& command);
  void Cancel(const v1::CancelLaunch& command);
  void Release(const v1::ReleasePlan& command);
  // `paths`, from this node to the others, become part of the answer.
  void ReportProgress(const v1::ReportProgress& query, std::vector<v1::NodePath> paths = {});

  // Ends everything with `reason`. `drained` runs, on any thread, when no executor runs, no send
  // and no receive is in flight, and all plans are forgotten. Commands of the next generation must
  // not be given before.
  void EndGeneration(const absl::Status& reason, std::function<void()> drained);

  // Accepts a message if the plan's schedule contains it and its epoch is launched here, and raises
  // its slot once its bytes are in place.
  Verdict Accept(int from_node, const Message& message, int64_t bytes, Arrival* arrival) override;
  void Lost(int from_node, const Message& message, const absl::Status& why) override;
  void Arrived(int from_node, const Message& message, const Arrival& arrival,
               const absl::Status& status) override;

  // Returns the memory of the plans.
  int64_t plan_bytes() const { return plan_bytes_; }
  std::vector<const Device*> devices() const;

 private:
  // Executors are destroyed on the thread of the `helper` that prepares the plan, because they wait
  // for their device. Small plans thus do not wait until a large one is freed: 120 MB take 25 ms.
  PlanPtr NewPlan(Loop* helper);
  // Called on the helper's thread.
  void PrepareNow(const v1::PreparePlan& command, const PlanPtr& plan);

  // This and the methods below are called within `calls_.Do`.
  PlanPtr FindPlan(uint64_t id) const;  // null: not prepared here
  Verdict Resolve(int from_node, const Message& message, int64_t bytes, Arrival* arrival);
  void OfferParked();
  void Report(v1::Report report);
  void FinishIfDrained();

  LocalNode node_;  // constant after SetTransport
  const ReportFn report_;
  Metrics::Counter* const prepared_;
  Metrics::Counter* const launched_;
  Metrics::Counter* const dropped_;
  Metrics::Counter* const parked_total_;
  std::function<void()> offer_again_;  // constant after SetTransport

  std::atomic<int64_t> plan_bytes_{0};

  CallQueue calls_;  // guards all below, and what plans and launches hold
  Plans plans_;
  int live_plans_ = 0;                          // those whose executors are not yet destroyed
  bool ending_ = false;                         // the generation is ending, so nothing is reported
  bool parked_ = false;                         // a message is parked since the last offer
  std::vector<std::function<void()>> drained_;  // callbacks to run when it has ended
  LocalLaunches launches_;

  // Last, because their tasks use all of the above. Large plans have their own thread, so that
  // small ones do not wait for them.
  Loop helper_{"plans"}, large_helper_{"large plans"};
};

}  // namespace agmm
