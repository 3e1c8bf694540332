// A hash of a plan, which nodes compare before they run the plan.
#pragma once

#include <cstdint>

#include "kernels/schedule/schedule.h"

namespace agmm {

// Returns a hash of the problem, without the world's ranks, and of the whole schedule. Guards
// against accidents (two daemons that planned differently), not against attackers.
uint64_t PlanHash(const Problem& problem, const Schedule& schedule);

}  // namespace agmm
