// The limits of a plan that is made here, without a daemon.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/predict/machine.h"
#include "kernels/schedule/plan.h"

namespace agmm {

// Returns why daemons refuse a plan of this cost; empty if they do not.
std::string RefusedByDaemons(const PlanCost& cost);

// Returns why a device of `machine` has no room for the shards of a rank and the workspace of its
// plan; empty if it has, or if its memory is unknown.
std::string TooLargeFor(const Machine& machine, const Problem& problem, int64_t workspace_bytes);

// Refuses plans that need more memory than is usable, because the system might kill other programs.
// Errors: RESOURCE_EXHAUSTED.
absl::Status CheckMemory(const PlanCost& cost);

// Plans by the recipe. Errors: those of PlanWith, and RESOURCE_EXHAUSTED for a plan that does not
// fit into memory after all.
absl::StatusOr<Schedule> PlanWithinMemory(const Problem& problem, const Topology& topology,
                                          const Recipe& recipe);

}  // namespace agmm
