// Runs one rank's part of a prepared schedule, epoch after epoch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/device/heap.h"
#include "kernels/device/transport.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

class Executor;

// How a plan's rank reaches the others. Indexed by rank of the mesh; null for a rank on another
// node.
struct Peers {
  Rank self = 0;
  std::vector<Executor*> executors;  // of this plan; executors[self] is this one
  std::vector<Heap*> heaps;
  std::vector<int> nodes;          // which node each rank is on, as Transport::Send wants it
  Transport* transport = nullptr;  // null where all ranks are local
  uint64_t plan = 0;               // Message::plan
  std::vector<int> world_ranks;    // what to call each rank in errors; empty: its own number
};

// Where everything lies in this epoch. Offsets into the heap, the same on every rank of the mesh.
struct Operands {
  std::vector<int64_t> offsets;  // by operand
  std::vector<uint64_t>
      versions;  // by operand: changes when the contents change; keys packed copies
  // Where the workspace begins. It may be another one than in the epoch before once that one is
  // over on every rank: what credits say of it, that its readers are done, then holds of any place.
  int64_t workspace_offset = 0;
};

// When a step started (its waits held) and ended, CLOCK_MONOTONIC nanoseconds. 0 where it never
// did.
struct StepTime {
  int64_t start_ns = 0, end_ns = 0;
};

struct EpochReport {
  absl::Status status;
  int64_t start_ns = 0, end_ns = 0;  // start 0: it never began, and C is what it was
  std::vector<StepTime> steps;       // one a step of this rank
};

// Prepare once, run many. Thread-safe.
class Executor {
 public:
  using DoneCallback = std::function<void(const EpochReport&)>;
  virtual ~Executor() = default;

  // Lowers the schedule for peers.self, builds kernels, clears the slots. Once, before anything
  // else. Errors: INVALID_ARGUMENT for a schedule that this device cannot run, RESOURCE_EXHAUSTED
  // for want of memory; this executor is of no use then.
  virtual absl::Status Prepare(const Problem& problem, const Schedule& schedule,
                               const Peers& peers) = 0;

  // Queues one epoch behind all that were queued on this device before; returns at once. `epoch`
  // rises by one from 1. `done` runs exactly once, on a thread of the device, when the rank has no
  // step left to do and no send in flight: OK; or after Cancel, the deadline or a failed peer, why,
  // and who was waiting for what: "rank 3 lane 1 step 5 waited 5.0 s for slot 3:2 (rows 2048:4096
  // of A from rank 4), epoch 17". A failed epoch fails every later one of this executor; the slots
  // are of no use any more.
  virtual void Run(uint64_t epoch, const Operands& operands, absl::Time deadline,
                   DoneCallback done) = 0;

  // Raises slot `index` of this rank to `epoch` (never lowers it) and wakes who waits for it.
  virtual void Signal(int index, uint64_t epoch) = 0;

  // Fails the running epoch and all queued ones of this executor with `reason`: waits pass, no
  // further signal is raised, the work in hand runs out, then each `done` runs.
  virtual void Cancel(const absl::Status& reason) = 0;
};

}  // namespace agmm
