// This node's part of every plan and job: plans for itself, owns the executors of its devices, runs
// launches in the order they come, and receives what the transport brings for them.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/observe/metrics.h"
#include "kernels/device/device.h"
#include "kernels/device/transport.h"

namespace agmm {

// Commands come on the loop; arrivals on the transport's thread; reports may leave on any thread.
class Runner : public Receiver {
 public:
  struct LocalDevice {
    Device* device;
    Heap* heap;
  };
  using ReportFn = std::function<void(v1::Report)>;

  virtual ~Runner() = default;
  // Devices are world ranks first_rank, first_rank + 1, ...; node_of_rank covers the world.
  // `report` takes the answers to the commands.
  static std::unique_ptr<Runner> Create(int self_node, int first_rank,
                                        std::vector<LocalDevice> devices,
                                        std::vector<int> node_of_rank, Metrics* metrics,
                                        ReportFn report);
  // Null in a world of one node. Before the first command. `resume` has the transport offer what it
  // parked again; called after a launch that something parked may wait for.
  virtual void SetTransport(Transport* transport, std::function<void()> resume) = 0;

  virtual void Prepare(const v1::PreparePlan& command) = 0;
  virtual void Launch(const v1::LaunchJob& command) = 0;
  virtual void Cancel(const v1::CancelLaunch& command) = 0;
  virtual void Release(const v1::ReleasePlan& command) = 0;

  // Ends everything with `reason`; `drained` runs (on any thread) when no executor runs, no send
  // and no receive is in flight and all plans are forgotten. Commands that come before are of the
  // new generation and must not be given to the runner until then.
  virtual void EndGeneration(const absl::Status& reason, std::function<void()> drained) = 0;

  // By local device. Never waits for long.
  virtual std::vector<DeviceCounters> counters() const = 0;
};

}  // namespace agmm
