// The one builder: the steps of every rank, with their places, slots and credits, from how the
// product is cut and how its operands travel.
#pragma once

#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/cells.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

struct BuildOptions {
  Arrivals arrivals = Arrivals::kPlaces;
  // The most arrivals that a rank holds at a time; 0: all. One input may travel, and its chunks
  // have to be used in the order of their arrival.
  int places = 0;
  bool carried = false;  // sends name the multiply that reads the same tiles
};

// `work`: parts of the ranks, empty where a rank makes nothing.
// `movements`: of every operand.
Schedule Build(const Problem& problem, const Topology& topology, const Work& work,
               const std::vector<Movement>& movements, const BuildOptions& options);

}  // namespace agmm
