// Runs one rank's part of a prepared schedule, epoch after epoch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/deadline.h"
#include "kernels/device/heap.h"
#include "kernels/device/rank_state.h"
#include "kernels/device/transport.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

class Executor;

// The other ranks of a plan, as one of them reaches them. Vectors are by rank of the mesh, with
// null for ranks on other nodes.
struct Peers {
  Rank self = 0;
  std::vector<Executor*> executors;  // of this plan; executors[self] is this one
  std::vector<Heap*> heaps;
  std::vector<int> nodes;          // of each rank, for Transport::Send
  std::vector<int> islands = {};   // as Topology::island_of_rank
  Transport* transport = nullptr;  // null if all ranks are local
  uint64_t plan = 0;               // Message::plan
};

// The epoch's memory: offsets into the heap, the same on every rank of the mesh.
struct Operands {
  std::vector<int64_t> offsets;    // by operand
  std::vector<uint64_t> versions;  // by operand; change with the contents, and key packed copies
  // The workspace may move between two epochs once the earlier one has ended on every rank: its
  // credits, which mean that its readers are done, are then valid for any memory.
  int64_t workspace_offset = 0;
};

struct EpochReport {
  absl::Status status;
  int64_t start_ns = 0, end_ns = 0;  // start 0: the epoch never began, and C is unchanged
  std::vector<StepTime> steps;       // by step of this rank
  RankState stopped = {};            // for a failed epoch: its state at the failure, without steps
};

// Prepared once, run many times. Thread-safe.
class Executor {
 public:
  using DoneCallback = std::function<void(const EpochReport&)>;
  virtual ~Executor() = default;

  // Lowers the schedule for peers.self, builds kernels, clears the slots. Keeps the schedule, which
  // the executors of a plan share, for errors. To be called once, before any other call. Errors:
  // INVALID_ARGUMENT for a schedule that this device cannot run, RESOURCE_EXHAUSTED without memory;
  // the executor is then unusable.
  virtual absl::Status Prepare(const Problem& problem, std::shared_ptr<const Schedule> schedule,
                               const Peers& peers) = 0;
  // Memory of the prepared plan, without the schedule.
  virtual int64_t size_bytes() const = 0;
  // The kinds of paths between this rank and others in the prepared plan, as in
  // v1::Job.device_paths. Empty if all memory is the host's.
  virtual std::set<std::string> device_paths() const { return {}; }
  // The kernels that compute this rank's products in the prepared plan, and why others do not: as
  // in v1::Job.device_products. Empty for a kind of device that has no choice.
  virtual std::set<std::string> device_products() const { return {}; }

  // Queues one epoch after all others that are queued on this device; returns at once. `epoch`
  // counts from 1. `done` runs exactly once, on a thread of the device, when the rank has no step
  // left and no send in flight: with OK or, after Cancel, a passed deadline or the failure of a
  // peer, with the reason and the waiting step: "rank 3 lane 1 step 5 waited 5.0 s for slot 3:2
  // (rank 4: send rows 2048:4096 of A to rank 3), epoch 17". A failed epoch fails all later ones of
  // this executor, because its slots are then undefined. Epochs that began are reported one after
  // the other, in their order, but the next epoch of the device may begin before `done` has run. A
  // caller that examines an epoch's operands in `done` must therefore queue the next epoch from
  // there. While `done` runs, other epochs of the device may stand still, so it must not wait.
  // It must not destroy this executor either.
  virtual void Run(uint64_t epoch, const Operands& operands, Deadline deadline,
                   DoneCallback done) = 0;

  // Raises slot `index` of this rank to `epoch` (never lowers it) and wakes its waiter.
  virtual void Signal(int index, uint64_t epoch) = 0;

  // Fails the running epoch and all queued ones of this executor with `reason`: waits end, no
  // further signal is raised, running work finishes, then each `done` runs.
  virtual void Cancel(const absl::Status& reason) = 0;

  // Passes the state of the executor's epoch in progress, or an empty one, to `done`: at once, or
  // soon on a thread of the device. `times` adds the times of its steps. For a failed epoch that
  // drains, this is the state at the failure, with the messages that are in flight now.
  using StateCallback = std::function<void(const RankState&)>;
  virtual void Observe(bool times, StateCallback done) = 0;
};

}  // namespace agmm
