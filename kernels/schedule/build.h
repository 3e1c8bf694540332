// Builds the steps of every rank, with their places, slots and credits, from the parts of the
// product and the movements of its operands. All algorithms use this builder.
#pragma once

#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/build_options.h"
#include "kernels/schedule/cells.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// `work` has the part of each rank, empty if the rank computes nothing. `movements` has one for
// each demand.
Schedule Build(const Problem& problem, const Topology& topology, const Work& work,
               const std::vector<Movement>& movements, const BuildOptions& options);

// Returns the number of steps without joins that Build makes of these demands, without making
// them, because a plan may be too large. Floating-point, because hostile options give more than 64
// bits can count.
double CountSteps(const Problem& problem, const Topology& topology, const Demands& demands,
                  const Algorithm& algorithm);

}  // namespace agmm
