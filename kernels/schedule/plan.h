// Planners: Problem + Topology + options -> Schedule. Pure, deterministic, integers only, so that
// every daemon plans the same schedule for itself.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

struct PlanOptions {
  std::string algorithm = "auto";  // auto | serial | ring | direct | peer
  int chunks = 0;  // pieces of each shard that travel and multiply on their own; 0: chosen
  bool operator==(const PlanOptions&) const = default;
};

inline constexpr int kMaxChunks = 256;

// Blocks that travel or are read, which the time to plan and to prove goes by, for options that
// ResolveOptions has resolved.
int64_t HopsOf(const Problem& problem, const PlanOptions& options);

// About how many steps the plan has, and the memory that it takes to plan and to prove it.
struct PlanCost {
  int64_t steps = 0, bytes = 0;
};
PlanCost CostOf(const Problem& problem, const PlanOptions& resolved);

// The values of PlanOptions::algorithm.
const std::vector<std::string>& Algorithms();

// Chooses the options that were left open ("auto", 0 chunks). The result plans the same schedule on
// every node. Errors: INVALID_ARGUMENT for an unknown algorithm, a chunk count outside
// [0, kMaxChunks], or peer where ranks of different nodes gather from each other.
absl::StatusOr<PlanOptions> ResolveOptions(const Problem& problem, const Topology& topology,
                                           const PlanOptions& options);

// One sentence on why ResolveOptions chose its options. Empty where it kept all that was asked for.
std::string ExplainChoice(const Problem& problem, const PlanOptions& asked,
                          const PlanOptions& resolved);

// Errors: INVALID_ARGUMENT for an invalid problem or invalid options; UNIMPLEMENTED for a product
// that no planner covers.
absl::StatusOr<Schedule> Plan(const Problem& problem, const Topology& topology,
                              const PlanOptions& options);

// Returns the same schedule without waits that others imply and without signals that no step waits
// for, slots renumbered densely. Idempotent. Plan calls it at its end.
Schedule Close(const Schedule& schedule);

}  // namespace agmm
