#include "kernels/schedule/algorithm.h"

#include "absl/algorithm/container.h"

namespace agmm {

const std::vector<Algorithm>& Algorithms() {
  static const auto* const all = new std::vector<Algorithm>{
      // The unfused baseline: gathers the whole operand into one block and multiplies once. It
      // crosses between nodes as rarely as possible, because a slow baseline would make the others
      // look better.
      {.name = "serial",
       .route = HierarchicalRoute,
       .arrivals = Arrivals::kContiguous,
       .one_a_node = true},
      {.name = "ring", .route = RingRoute, .passes_on = true},
      {.name = "bidirectional_ring", .route = BidirectionalRingRoute, .passes_on = true},
      {.name = "split_ring", .route = SplitRingRoute, .pieces = 2, .passes_on = true},
      {.name = "direct", .route = DirectRoute, .sums_in_order = true},
      {.name = "hierarchical",
       .route = HierarchicalRoute,
       .one_a_node = true,
       .passes_on = true,
       .bundles = true},
      {.name = "hierarchical_peer",
       .route = HierarchicalRoute,
       .arrivals = Arrivals::kInPlace,
       .one_a_node = true},
      {.name = "torus", .route = TorusRoute, .pieces = 2, .passes_on = true},
      {.name = "peer", .route = DirectRoute, .arrivals = Arrivals::kInPlace, .sums_in_order = true},
  };
  return *all;
}

const Algorithm* FindAlgorithm(const std::string& name) {
  const std::vector<Algorithm>& all = Algorithms();
  const auto at = absl::c_find_if(all, [&](const Algorithm& one) { return one.name == name; });
  return at == all.end() ? nullptr : &*at;
}

}  // namespace agmm
