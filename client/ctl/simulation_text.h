// Simulated plans as text. Pure.
#pragma once

#include <string>

#include "client/ctl/simulated_plans.h"

namespace agmm {

// The problem, the platform, the bound and a row for each algorithm; the timeline of the fastest.
std::string ComparisonText(const Problem& problem, const Platform& platform,
                           const SimulatedPlans& all);

// The times of one plan, its timeline, the use of each link and rank, and the longest chain.
std::string SimulationText(const Problem& problem, const Platform& platform,
                           const SimulatedPlan& plan);

}  // namespace agmm
