// The unfused baseline: all of A first, then one multiply. Each rank gathers the whole operand, its
// own shard too, into one contiguous place, because anything less would flatter the fused forms.
#include "kernels/schedule/gather.h"

namespace agmm {

Schedule PlanSerial(const Problem& problem) {
  const Tensor& a = problem.tensors[kA];
  const int64_t pitch = ShardPitchBytes(problem.mesh, a);
  Schedule schedule;
  schedule.algorithm = "serial";
  schedule.workspace_bytes = problem.m() * pitch;
  schedule.ranks.resize(problem.mesh.size());
  std::vector<int> slots(problem.mesh.size(), 0);
  for (const std::vector<Rank>& group : GatherGroups(problem)) {
    const int size = static_cast<int>(group.size());
    auto shard = [&](int i) { return ShardBlock(problem, kA, group[i]); };
    auto gathered = [&](int at, int of) {
      return Place{group[at], kWorkspace, shard(of).rows.begin * pitch, pitch, a.dtype};
    };
    auto resident = [&](int i) { return ResidentPlace(problem, shard(i), group[i]); };
    std::vector<std::vector<Step>> sends(size);
    std::vector<Step> multiplies(size);
    for (int i = 0; i < size; ++i) {
      if (shard(i).empty()) continue;
      for (int d = 1; d < size; ++d) {
        const int to = (i - d + size) % size;
        if (!HasColumns(problem, group[to])) continue;
        const Slot arrived{group[to], slots[group[to]]++}, credit{group[i], slots[group[i]]++};
        const int lane = SendLane(problem, static_cast<int>(sends[i].size()));
        sends[i].push_back(
            {Transfer{shard(i), resident(i), {gathered(to, i)}}, lane, {{credit, 1}}, {arrived}});
        multiplies[to].waits.push_back({arrived, 0});
        multiplies[to].signals.push_back(credit);
      }
    }
    for (int i = 0; i < size; ++i) {
      std::vector<Step>& steps = schedule.ranks[group[i]];
      if (HasColumns(problem, group[i])) {
        // The copy and the multiply share a lane, so they need no slot between them.
        if (!shard(i).empty())
          steps.push_back({Transfer{shard(i), resident(i), {gathered(i, i)}}, kComputeLane});
        const Place all{group[i], kWorkspace, 0, pitch, a.dtype};
        multiplies[i].op = RowsTimesB(problem, group[i], {0, problem.m()}, all);
        steps.push_back(multiplies[i]);
      }
      steps.insert(steps.end(), sends[i].begin(), sends[i].end());
    }
  }
  return schedule;
}

}  // namespace agmm
