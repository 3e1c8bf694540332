// The algorithms: a name for a route and for the places of what arrives. Each plans every sharding.
#pragma once

#include <string>
#include <vector>

#include "kernels/schedule/routes.h"

namespace agmm {

// The places of the inputs' chunks at the ranks that receive them.
enum class Arrivals {
  kPlaces,      // each in a place of the workspace
  kContiguous,  // all of an operand in one block, own shards too, so that one multiply reads it
  kInPlace,     // not copied within a node, but read where they lie
};

struct Algorithm {
  std::string name;
  Route route = nullptr;
  Arrivals arrivals = Arrivals::kPlaces;
  int pieces = 1;  // of a chunk that the options ask for; 2 where halves take different ways
  // A node gets a chunk that several ranks have from one of them, not each of its ranks from the
  // nearest.
  bool one_a_node = false;
};

// In the order in which help texts name them.
const std::vector<Algorithm>& Algorithms();
// Null for an unknown name.
const Algorithm* FindAlgorithm(const std::string& name);

}  // namespace agmm
