// Rings. The plain ring has the order of the guide "Collective matrix multiplication" of
// Pallas:MGPU (JAX documentation); the bidirectional one that of the TPU guide.
#include <algorithm>
#include <utility>

#include "kernels/schedule/routes.h"

namespace agmm {
namespace {

// `down` hops down the cycle from the source, and then `up` hops up from it.
std::vector<Hop> Around(const Spread& spread, int down, int up) {
  const std::vector<Rank> cycle = CycleOf(spread);
  const int size = static_cast<int>(cycle.size());
  std::vector<Hop> hops;
  for (int i = 1; i <= down; ++i) hops.push_back({cycle[i - 1], cycle[i], i});
  for (int i = 1; i <= up; ++i) hops.push_back({cycle[(size - i + 1) % size], cycle[size - i], i});
  return hops;
}

}  // namespace

std::vector<Rank> CycleOf(const Spread& spread) {
  std::vector<Rank> cycle = spread.needers;
  cycle.push_back(spread.source);
  const std::vector<int>& node = spread.topology.node_of_rank;
  std::sort(cycle.begin(), cycle.end(),
            [&](Rank a, Rank b) { return std::pair(node[a], a) > std::pair(node[b], b); });
  std::rotate(cycle.begin(), std::find(cycle.begin(), cycle.end(), spread.source), cycle.end());
  return cycle;
}

std::vector<Hop> RingRoute(const Spread& spread) {
  return Around(spread, static_cast<int>(spread.needers.size()), 0);
}

std::vector<Hop> BidirectionalRingRoute(const Spread& spread) {
  const int others = static_cast<int>(spread.needers.size());
  return Around(spread, others - others / 2, others / 2);
}

std::vector<Hop> SplitRingRoute(const Spread& spread) {
  const int others = static_cast<int>(spread.needers.size());
  return spread.piece % 2 == 0 ? Around(spread, others, 0) : Around(spread, 0, others);
}

}  // namespace agmm
