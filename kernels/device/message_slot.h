// Finds the destination of a message from another node, using only the receiving node's own
// knowledge.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/executor.h"
#include "kernels/device/heap.h"
#include "kernels/device/transport.h"
#include "kernels/schedule/part.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// The receiver's view of the message's plan. Refers to its constituents.
struct ArrivalContext {
  const Problem& problem;
  const Schedule& schedule;
  const std::vector<int>& nodes;       // by rank
  int node = 0;                        // the receiving node
  const std::vector<Heap*>& heaps;     // by rank; null on other nodes
  const Operands* operands = nullptr;  // null: the epoch is not launched here yet
  const StepNames* names = nullptr;    // names of the schedule's steps; null for a whole schedule
};

// Returns the destination and the slot of `message`; sets no `plan`. Errors: INVALID_ARGUMENT for a
// message that this schedule never sends from `from_node` to this node, or of another size;
// FAILED_PRECONDITION for a valid message whose destination is unknown before the launch.
absl::StatusOr<Arrival> ResolveArrival(const ArrivalContext& context, int from_node,
                                       const Message& message, int64_t bytes);

// Raises the slot of an arrived message. `executors`: by rank; null on other nodes.
void Signal(const Arrival& arrival, uint64_t epoch, const std::vector<Executor*>& executors);

}  // namespace agmm
