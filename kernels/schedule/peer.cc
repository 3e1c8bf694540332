// No copies: each rank multiplies its own shard, then upwards those of the others, out of their
// memory. A shard may be read throughout its owner's epoch, so each owner begins with a join that
// lets readers in and ends with one that waits for them.
#include "kernels/schedule/gather.h"

namespace agmm {

Schedule PlanPeer(const Problem& problem, int chunks) {
  Schedule schedule;
  schedule.algorithm = "peer";
  schedule.ranks.resize(problem.mesh.size());
  std::vector<int> slots(problem.mesh.size(), 0);
  std::vector<GatherGroup> groups;
  const GatherRoutes routes = SplitShards(problem, chunks, &groups);
  for (const auto& [group, by_shard] : groups) {
    const int size = static_cast<int>(group.size());
    // By group member: the joins at both ends of its epoch, and what it multiplies between them.
    std::vector<Step> entries(size), exits(size);
    std::vector<std::vector<Step>> multiplies(size);
    for (int i = 0; i < size; ++i) {
      if (!HasColumns(problem, group[i])) continue;
      for (int d = 0; d < size; ++d) {
        const int owner = (i + d) % size;
        for (int chunk : by_shard[owner]) {
          const Range rows = routes.chunks[chunk].rows;
          Step& step = multiplies[i].emplace_back();
          step.op = RowsTimesB(problem, group[i], rows,
                               ResidentPlace(problem, RowsOfA(problem, rows), group[owner]));
          if (d > 0 && chunk == by_shard[owner].front()) {
            const Slot begun{group[i], slots[group[i]]++};
            entries[owner].signals.push_back(begun);
            step.waits.push_back({begun, 0});
          }
          if (d > 0 && chunk == by_shard[owner].back()) {
            const Slot read{group[owner], slots[group[owner]]++};
            step.signals.push_back(read);
            exits[owner].waits.push_back({read, 0});
          }
        }
      }
    }
    for (int i = 0; i < size; ++i) {
      std::vector<Step>& steps = schedule.ranks[group[i]];
      if (!entries[i].signals.empty()) steps.push_back(entries[i]);
      steps.insert(steps.end(), multiplies[i].begin(), multiplies[i].end());
      if (!exits[i].waits.empty()) steps.push_back(exits[i]);
    }
  }
  return schedule;
}

}  // namespace agmm
