// The algorithms: names for combinations of a route and places for arrivals. Each plans every
// sharding.
#pragma once

#include <string>
#include <vector>

#include "kernels/schedule/routes.h"

namespace agmm {

// The places of the inputs' chunks at the ranks that receive them.
enum class Arrivals {
  kPlaces,      // each in a place of the workspace
  kContiguous,  // the whole operand in one block, with the rank's own shard, for one multiply
  kInPlace,     // read in place if the rank can load them, else copied to a place
};

struct Algorithm {
  std::string name;
  Route route = nullptr;
  Arrivals arrivals = Arrivals::kPlaces;
  int pieces = 1;  // pieces of each requested chunk; 2 if the halves take different routes
  // True: a node without a holder of a chunk gets it from one holder. False: each of its ranks gets
  // it from the nearest holder.
  bool one_a_node = false;
  // True: in an exchange, where each chunk has one needer, chunks pass through ranks that do not
  // need them, as the route says. False: they go straight to their needers.
  bool passes_on = false;
  // True: terms go straight to the rank that sums them, which adds them in the order of the ranks.
  // Ranks that all want a small sum may then each add up all of its terms, with the same bits.
  bool sums_in_order = false;
  // True: chunks that pass through a rank on their way to one needer leave it in one send.
  bool bundles = false;
};

// In the order in which help texts name them.
const std::vector<Algorithm>& Algorithms();
// Returns null for an unknown name.
const Algorithm* FindAlgorithm(const std::string& name);

}  // namespace agmm
