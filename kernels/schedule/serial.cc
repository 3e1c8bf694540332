// The unfused baseline: all of A first, then one multiply. Each rank gathers the whole operand, its
// own shard too, into one contiguous place; anything less would flatter the fused forms.
#include "kernels/schedule/gather.h"

namespace agmm {

Schedule PlanSerial(const Problem& problem) {
  const Tensor& a = problem.tensors[kA];
  const int64_t pitch = ShardPitchBytes(problem.mesh, a);
  const int64_t c_pitch = ShardPitchBytes(problem.mesh, problem.tensors[kC]);
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
    auto resident = [&](int i) { return Place{group[i], kA, 0, pitch, a.dtype}; };
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
        // The copy and the multiply share a lane: no slot between them.
        if (!shard(i).empty())
          steps.push_back({Transfer{shard(i), resident(i), {gathered(i, i)}}, kComputeLane});
        const Block b = ShardBlock(problem, kB, group[i]);
        const Block all{kA, {0, problem.m()}, {0, problem.k()}};
        const int64_t b_pitch = ShardPitchBytes(problem.mesh, problem.tensors[kB]);
        Multiply multiply{all, b, {kC, all.rows, b.cols}};
        multiply.a_place = {group[i], kWorkspace, 0, pitch, a.dtype};
        multiply.b_place = {group[i], kB, 0, b_pitch, problem.tensors[kB].dtype};
        multiply.out = {group[i], kC, 0, c_pitch, problem.tensors[kC].dtype};
        multiplies[i].op = multiply;
        steps.push_back(multiplies[i]);
      }
      steps.insert(steps.end(), sends[i].begin(), sends[i].end());
    }
  }
  return schedule;
}

}  // namespace agmm
