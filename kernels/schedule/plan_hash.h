// A number for a plan: nodes compare it before they run the plan.
#pragma once

#include <cstdint>

#include "kernels/schedule/schedule.h"

namespace agmm {

// Hash of the problem, without the world's ranks, and of all that the schedule says. Guards against
// accidents (two daemons that planned differently), not against attackers.
uint64_t PlanHash(const Problem& problem, const Schedule& schedule);

}  // namespace agmm
