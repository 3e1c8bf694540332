#include "kernels/schedule/demand.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

void SetTravels(Demand& demand) {
  for (size_t rank = 0; rank < demand.has.size(); ++rank) {
    for (const Block& needed : demand.needs[rank])
      demand.travels |= !needed.empty() && Intersect(demand.has[rank], needed) != needed;
  }
}

// Returns true if each rank has all of what it needs along `dim`.
bool IsWhole(const Problem& problem, const Demand& demand, Dim dim) {
  const auto range = [&](const Block& block) -> const Range& {
    return Along(problem, demand.operand, block, dim);
  };
  for (size_t rank = 0; rank < demand.has.size(); ++rank) {
    for (const Block& block : demand.needs[rank]) {
      const Range& needed = range(block);
      if (!block.empty() && Intersect(range(demand.has[rank]), needed) != needed) return false;
    }
  }
  return true;
}

// The union of the ranges, as disjoint ranges in order.
std::vector<Range> United(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.begin < b.begin; });
  std::vector<Range> united;
  for (const Range& range : ranges) {
    if (!united.empty() && range.begin <= united.back().end) {
      united.back().end = std::max(united.back().end, range.end);
    } else {
      united.push_back(range);
    }
  }
  return united;
}

// The blocks of an input that a rank multiplies for its `part`, or only for the blocks `made` of C
// if this is not null.
Blocks Multiplied(const Problem& problem, Operand operand, const LocalProduct& part,
                  const Blocks* made) {
  const Block whole = NeededBlock(problem, operand, part);
  if (made == nullptr) return {whole};
  const Dim outer = OuterDim(problem, operand);
  std::vector<Range> ranges;
  for (const Block& c : *made) ranges.push_back(Along(problem, c.operand, c, outer));
  Blocks blocks;
  for (const Range& range : United(std::move(ranges))) {
    Block& block = blocks.emplace_back(whole);
    Along(problem, operand, block, outer) = range;
  }
  return blocks;
}

Demand InputDemand(const Problem& problem, Operand operand, const Demands& demands) {
  Demand demand;
  demand.operand = operand;
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    demand.has.push_back(ShardBlock(problem, operand, rank));
    demand.needs.push_back(Multiplied(problem, operand, demands.work.parts[rank],
                                      demands.made.empty() ? nullptr : &demands.made[rank]));
  }
  SetTravels(demand);
  demand.along_k = demand.travels && IsWhole(problem, demand, OuterDim(problem, operand));
  return demand;
}

Demand ResultDemand(const Problem& problem, Operand operand, const Work& work) {
  Demand demand;
  demand.operand = operand;
  demand.producer = Producer::kMultiplies;
  demand.consumer = Consumer::kShard;
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    demand.has.push_back(NeededBlock(problem, operand, work.parts[rank]));
    demand.needs.push_back({ShardBlock(problem, operand, rank)});
  }
  SetTravels(demand);
  return demand;
}

}  // namespace

Demands DemandsOf(const Problem& problem, const Split& split) {
  Demands demands;
  demands.work = WorkOf(problem, split);
  for (const Operand input : {TheProduct(problem).a, TheProduct(problem).b})
    demands.list.push_back(InputDemand(problem, input, demands));
  demands.list.push_back(ResultDemand(problem, TheProduct(problem).c, demands.work));
  return demands;
}

void UpdateInputs(const Problem& problem, Demands& demands) {
  for (Demand& demand : demands.list) {
    if (demand.consumer == Consumer::kMultiplies)
      demand = InputDemand(problem, demand.operand, demands);
  }
}

const Demand& LargestDemand(const Problem& problem, const Demands& demands) {
  const Demand* largest = &demands.result();
  int64_t most = 0;
  for (const Demand& demand : demands.list) {
    if (demand.consumer != Consumer::kMultiplies || !demand.travels) continue;
    const int64_t bytes = ShardBytes(problem.mesh, problem.tensors[demand.operand]);
    if (bytes <= most) continue;
    most = bytes;
    largest = &demand;
  }
  return *largest;
}

absl::Status CheckDemands(const Problem& problem, const Split& split, const Demands& demands) {
  // The work of planning, counted in pairs of a chunk and a rank that has or needs it. A chunk
  // itself takes about as long as kChunk pairs.
  constexpr int64_t kMost = 1 << 26, kChunk = 32;
  for (const Demand& demand : demands.list) {
    if (!demand.travels) continue;
    const Grid grid = GridOf(demand.has, demand.needs, 1, 1);
    int64_t size = kChunk * grid.size();
    const auto add = [&](const Block& block) {
      if (!block.empty())
        size +=
            Grid::Within(grid.rows, block.rows).size() * Grid::Within(grid.cols, block.cols).size();
    };
    absl::c_for_each(demand.has, add);
    for (const Blocks& blocks : demand.needs) absl::c_for_each(blocks, add);
    if (size <= kMost) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "split %s moves too many blocks of %s between %d ranks to be planned; use another split or "
        "a smaller mesh",
        SplitText(problem, split), problem.tensors[demand.operand].name, problem.mesh.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<Split> ChooseSplit(const Problem& problem) {
  std::optional<std::pair<SplitCost, Split>> best;
  absl::Status none;
  for (const Split& split : Splits(problem)) {
    if (absl::Status status = CheckNoSum(problem, split); !status.ok()) {
      none.Update(status);
      continue;
    }
    const SplitCost cost = CostOf(problem, split);
    if (best && !IsBetter(cost, best->first)) continue;
    if (absl::Status status = CheckDemands(problem, split, DemandsOf(problem, split));
        !status.ok()) {
      none = status;
      continue;
    }
    best = {cost, split};
  }
  if (!best) return none;
  return best->second;
}

}  // namespace agmm
