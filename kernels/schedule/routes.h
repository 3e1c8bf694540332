// A chunk's route from the rank that has it to the ranks that need it: a tree of hops. Routes are
// decided only here; a new route is one function and a row in algorithm.cc.
#pragma once

#include <vector>

#include "kernels/schedule/problem.h"

namespace agmm {

// One send of a chunk, from a rank that has or has received it. `step`, from 1, is the time of its
// arrival if all hops took equally long; it orders sends, arrivals and multiplies.
struct Hop {
  Rank from = 0, to = 0;
  int step = 0;
  bool operator==(const Hop&) const = default;
};

// All inputs of a route.
struct Spread {
  Rank source = 0;
  std::vector<Rank> needers;  // ascending, without the source
  int piece = 0;              // the number of the chunk among the pieces of its shard
  const Mesh& mesh;
  const Topology& topology;
  // In an exchange, where each chunk has one needer: the ranks through which a chunk may pass,
  // ascending, with the source and the needer. Null: only ranks that need a chunk send it on.
  const std::vector<Rank>* ring = nullptr;
};

// Returns hops that reach each needer once; each hop starts at the source or at a rank that an
// earlier hop reaches.
using Route = std::vector<Hop> (*)(const Spread& spread);

// From neighbour to neighbour, downwards, until the last needer.
std::vector<Hop> RingRoute(const Spread& spread);
// Half of the ranks are reached from above and half from below, so that the last of P is reached
// after P/2 hops.
std::vector<Hop> BidirectionalRingRoute(const Spread& spread);
// Even pieces downwards, odd ones upwards.
std::vector<Hop> SplitRingRoute(const Spread& spread);
// To each of the others, nearest below first. If the chunk has one needer, the step is its distance
// below the source: in an exchange, each rank is then sent to by one at a time.
std::vector<Hop> DirectRoute(const Spread& spread);
// To the rank of the same index on each other node, and from there to the others of that node. In
// an exchange: to the rank of the source's node that has the index of the needer, and from there to
// the needer, so that all chunks of a node for one needer leave from one rank. Without a ring, a
// chunk with one needer takes DirectRoute.
std::vector<Hop> HierarchicalRoute(const Spread& spread);
// Along one mesh axis after the other, in an exchange from neighbour to neighbour. The two pieces
// of a chunk begin with different axes, so that the links of two axes work at once.
std::vector<Hop> TorusRoute(const Spread& spread);

// Returns the hops backwards, the last hop first, with steps mirrored between the first and the
// last step. If a rank spreads a chunk by `hops`, the result brings it the parts of a sum: every
// other rank sends once, after it has received everything. Reversed(Reversed(hops)) equals `hops`.
std::vector<Hop> Reversed(std::vector<Hop> hops);

// Returns the ranks of `ring` (null: the source and the needers) as a cycle: downwards from the
// source and node by node, so that the cycle enters each node once.
std::vector<Rank> CycleOf(const Spread& spread);

}  // namespace agmm
