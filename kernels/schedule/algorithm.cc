#include "kernels/schedule/algorithm.h"

#include "absl/algorithm/container.h"

namespace agmm {

const std::vector<Algorithm>& Algorithms() {
  static const auto* const all = new std::vector<Algorithm>{
      // The unfused baseline: gathers the whole operand into one block and multiplies once. It
      // crosses between nodes as rarely as possible, because a slow baseline would make the others
      // look better.
      {"serial", HierarchicalRoute, Arrivals::kContiguous, 1, /*one_a_node=*/true},
      {"ring", RingRoute},
      {"bidirectional_ring", BidirectionalRingRoute},
      {"split_ring", SplitRingRoute, Arrivals::kPlaces, 2},
      {"direct", DirectRoute},
      {"hierarchical", HierarchicalRoute, Arrivals::kPlaces, 1, /*one_a_node=*/true},
      {"hierarchical_peer", HierarchicalRoute, Arrivals::kInPlace, 1, /*one_a_node=*/true},
      {"torus", TorusRoute, Arrivals::kPlaces, 2},
      {"peer", DirectRoute, Arrivals::kInPlace},
  };
  return *all;
}

const Algorithm* FindAlgorithm(const std::string& name) {
  const std::vector<Algorithm>& all = Algorithms();
  const auto at = absl::c_find_if(all, [&](const Algorithm& one) { return one.name == name; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace agmm
