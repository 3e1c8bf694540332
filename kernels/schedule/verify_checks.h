// The parts of Verify after CheckPasses, in the order in which they rely on each other.
#pragma once

#include "absl/status/status.h"
#include "kernels/schedule/order.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// Checks that conflicting accesses of steps and environments are ordered, also across epochs.
// Requires VerifySteps.
absl::Status CheckRaces(const Problem& problem, const Schedule& schedule, const Order& order);
// Checks that reads find the blocks that they name and that C is complete. Walks one order of the
// steps, which represents all orders once CheckRaces holds.
absl::Status CheckContents(const Problem& problem, const Schedule& schedule, const Order& order);

}  // namespace agmm
