// Every rank pushes its own shard to all others, nearest below first, so that each receives in the order in
// which it multiplies: its own, then upwards.
#include "kernels/schedule/gather.h"

namespace agmm {

Schedule PlanDirect(const Problem& problem, int chunks) {
  GatherRoutes routes;
  routes.sends.resize(problem.mesh.size());
  routes.multiplies.resize(problem.mesh.size());
  for (const std::vector<Rank>& group : GatherGroups(problem)) {
    const int size = static_cast<int>(group.size());
    std::vector<std::vector<int>> by_shard;
    const std::vector<Chunk> split = SplitShards(
        problem, group, chunks, static_cast<int>(routes.chunks.size()), &by_shard);
    routes.chunks.insert(routes.chunks.end(), split.begin(), split.end());
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
