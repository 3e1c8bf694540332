// Each shard travels from neighbour to neighbour, downwards; a rank multiplies what it holds while
// it passes it on. Order after the guide "Collective matrix multiplication" of Pallas:MGPU (JAX
// documentation).
#include "kernels/schedule/gather.h"

namespace agmm {

Schedule PlanRing(const Problem& problem, int chunks) {
  std::vector<GatherGroup> groups;
  GatherRoutes routes = SplitShards(problem, chunks, &groups);
  for (const auto& [group, by_shard] : groups) {
    const int size = static_cast<int>(group.size());
    // In step d the shard of group member i + d is at member i. Shards skip members without
    // columns, because those need no A.
    for (int i = 0; i < size; ++i) {
      for (int d = 0; d < size; ++d) {
        if (d > 0 && !HasColumns(problem, group[i])) continue;
        const int shard = (i + d) % size;
        int next = d + 1;
        while (next < size && !HasColumns(problem, group[(shard - next + size) % size])) ++next;
        for (int chunk : by_shard[shard]) {
          if (HasColumns(problem, group[i])) routes.multiplies[group[i]].push_back(chunk);
          if (next < size)
            routes.sends[group[i]].push_back(
                {chunk, group[i], group[(shard - next + size) % size]});
        }
      }
    }
  }
  return BuildGather(problem, "ring", routes);
}

}  // namespace agmm
