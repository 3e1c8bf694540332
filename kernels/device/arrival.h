// Where a message from another node belongs. Everything but the message is this node's own
// knowledge.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/executor.h"
#include "kernels/device/heap.h"
#include "kernels/device/transport.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// What a receiver knows of the message's plan. Refers to what it is made of.
struct ArrivalContext {
  const Problem& problem;
  const Schedule& schedule;
  const std::vector<int>& nodes;       // by rank
  int node = 0;                        // this one
  const std::vector<Heap*>& heaps;     // by rank; null on other nodes
  const Operands* operands = nullptr;  // null: not bound for this epoch yet
};

struct Arrival {
  Rows to;    // where the bytes go; rows 0: a signal alone
  Slot slot;  // then raise this one to the message's epoch
};

// Errors: INVALID_ARGUMENT for a message that this schedule never sends from `from_node` to this
// one, or of another size; FAILED_PRECONDITION where it is right and what it writes is not bound
// yet.
absl::StatusOr<Arrival> ResolveArrival(const ArrivalContext& context, int from_node,
                                       const Message& message, int64_t bytes);

}  // namespace agmm
