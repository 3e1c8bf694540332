// Every rank pushes its own shard to all others, nearest below first, so that each receives in the
// order in which it multiplies: its own, then upwards.
#include "kernels/schedule/gather.h"

namespace agmm {

Schedule PlanDirect(const Problem& problem, int chunks) {
  std::vector<GatherGroup> groups;
  GatherRoutes routes = SplitShards(problem, chunks, &groups);
  for (const auto& [group, by_shard] : groups) {
    const int size = static_cast<int>(group.size());
    for (int i = 0; i < size; ++i) {
      for (int d = 0; d < size; ++d) {
        const Rank below = group[(i - d + size) % size];
        if (d > 0 && HasColumns(problem, below)) {
          for (int chunk : by_shard[i]) routes.sends[group[i]].push_back({chunk, group[i], below});
        }
        if (HasColumns(problem, group[i])) {
          for (int chunk : by_shard[(i + d) % size]) routes.multiplies[group[i]].push_back(chunk);
        }
      }
    }
  }
  return BuildGather(problem, "direct", routes);
}

}  // namespace agmm
