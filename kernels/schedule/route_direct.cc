#include "kernels/schedule/routes.h"

namespace agmm {

std::vector<Hop> DirectRoute(const Spread& spread) {
  const std::vector<Rank> cycle = CycleOf(spread);
  std::vector<Hop> hops;
  for (int i = 1; i < static_cast<int>(cycle.size()); ++i)
    hops.push_back({spread.source, cycle[i], i});
  return hops;
}

}  // namespace agmm
