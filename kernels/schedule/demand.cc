#include "kernels/schedule/demand.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
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

int64_t SizeOf(const Block& block) {
  return block.empty() ? 0 : block.rows.size() * block.cols.size();
}

// Piece `part` of `parts` of a block, along its columns unless they are too few: the order in which
// an element is summed then does not depend on the number of rows.
Block PieceOf(Block block, int parts, int part) {
  const bool by_cols = block.cols.size() >= parts || block.cols.size() >= block.rows.size();
  Range& range = by_cols ? block.cols : block.rows;
  const Range piece = SplitRange(range.size(), parts, part);
  range = {range.begin + piece.begin, range.begin + piece.end};
  return block;
}

// The block that each rank of a sum sums, in `sums`: its part of its own shard, which it divides
// with the ranks that want the same one. Returns false if that leaves out elements of a shard or of
// `made`, the block of which the ranks have terms.
bool SumInShards(const Problem& problem, Operand operand, const Block& made,
                 const std::vector<Rank>& ranks, std::vector<Block>& sums) {
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, std::vector<Rank>> by_shard;
  for (Rank rank : ranks) {
    const Block wanted = ShardBlock(problem, operand, rank);
    if (wanted.empty()) continue;
    if (Intersect(wanted, made) != wanted) return false;
    by_shard[{wanted.rows.begin, wanted.rows.end, wanted.cols.begin, wanted.cols.end}].push_back(
        rank);
  }
  int64_t elements = 0;
  std::vector<Block> shards;
  for (const auto& [key, wanting] : by_shard) {
    const Block shard = ShardBlock(problem, operand, wanting.front());
    for (const Block& other : shards)
      if (!Intersect(shard, other).empty()) return false;
    shards.push_back(shard);
    elements += SizeOf(shard);
    const int parts = static_cast<int>(wanting.size());
    for (int i = 0; i < parts; ++i) sums[wanting[i]] = PieceOf(shard, parts, i);
  }
  return elements == SizeOf(made);
}

// Cuts a block at all ends of the shards of its operand.
Blocks CutByShards(const Block& block, const std::vector<Block>& shards) {
  const auto ranges = [&](Range Block::*along) {
    std::vector<int64_t> ends = {(block.*along).begin, (block.*along).end};
    for (const Block& shard : shards) {
      for (const int64_t end : {(shard.*along).begin, (shard.*along).end})
        if (end > (block.*along).begin && end < (block.*along).end) ends.push_back(end);
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
    std::vector<Range> ranges;
    for (size_t i = 0; i + 1 < ends.size(); ++i) ranges.push_back({ends[i], ends[i + 1]});
    return ranges;
  };
  Blocks blocks;
  for (const Range& rows : ranges(&Block::rows))
    for (const Range& cols : ranges(&Block::cols)) blocks.push_back({block.operand, rows, cols});
  return blocks;
}

// The sum of the parts that ranks make of the result: which rank sums which block. Ranks sum in
// their own shards if they can. Otherwise the ranks that make parts of a block sum equal pieces of
// it; if several groups can, the first one does, and the others make nothing.
Demand SumDemand(const Problem& problem, const Split& split, Operand operand, Work& work) {
  const int ranks = problem.mesh.size();
  Demand sum;
  sum.operand = operand;
  sum.producer = Producer::kMultiplies;
  sum.consumer = Consumer::kSum;
  sum.groups.resize(ranks);
  sum.has.resize(ranks, {operand, {}, {}});
  std::map<std::vector<int>, int> numbers;  // by coordinates along the axes that do not cut K
  std::vector<std::vector<Rank>> members;   // by group, without ranks that have no terms
  for (Rank rank = 0; rank < ranks; ++rank) {
    std::vector<int> coordinates;
    for (int axis = 0; axis < static_cast<int>(problem.mesh.axes.size()); ++axis) {
      if (!absl::c_linear_search(split.k, axis))
        coordinates.push_back(problem.mesh.Coordinate(rank, axis));
    }
    const auto [at, added] = numbers.try_emplace(coordinates, static_cast<int>(members.size()));
    if (added) members.emplace_back();
    sum.groups[rank] = at->second;
    if (!work.parts[rank].empty()) members[at->second].push_back(rank);
  }
  const auto made = [&](Rank rank) { return NeededBlock(problem, operand, work.parts[rank]); };
  bool in_shards = true;
  for (const std::vector<Rank>& group : members) {
    in_shards &=
        group.empty() || SumInShards(problem, operand, made(group.front()), group, sum.has);
  }
  // A rank without terms cannot sum in its shard.
  for (Rank rank = 0; rank < ranks; ++rank)
    in_shards &= !work.parts[rank].empty() || ShardBlock(problem, operand, rank).empty();
  Blocks summed;
  for (const std::vector<Rank>& group : members) {
    if (in_shards || group.empty()) continue;
    const bool again = absl::c_linear_search(summed, made(group.front()));
    if (!again) summed.push_back(made(group.front()));
    const int parts = static_cast<int>(group.size());
    for (int i = 0; i < parts; ++i) {
      sum.has[group[i]] = again ? Block{operand, {}, {}} : PieceOf(made(group[i]), parts, i);
      if (again) work.parts[group[i]] = {};
    }
  }
  // Chunks of a sum end where shards do, so that each has one place. In shards, they do anyway.
  std::vector<Block> shards;
  for (Rank rank = 0; rank < ranks && !in_shards; ++rank) {
    const Block shard = ShardBlock(problem, operand, rank);
    if (!shard.empty()) shards.push_back(shard);
  }
  for (Rank rank = 0; rank < ranks; ++rank) {
    sum.needs.push_back(work.parts[rank].empty() ? Blocks{}
                        : in_shards              ? Blocks{made(rank)}
                                                 : CutByShards(made(rank), shards));
  }
  SetTravels(sum);
  return sum;
}

}  // namespace

Demands DemandsOf(const Problem& problem, const Split& split) {
  Demands demands;
  demands.work = WorkOf(problem, split);
  const Operand c = TheProduct(problem).c;
  std::optional<Demand> sum;
  if (demands.work.summed) sum = SumDemand(problem, split, c, demands.work);
  for (const Operand input : {TheProduct(problem).a, TheProduct(problem).b})
    demands.list.push_back(InputDemand(problem, input, demands));
  Demand result = ResultDemand(problem, c, demands.work);
  if (sum) {
    result.producer = Producer::kSum;
    result.has = sum->has;
    result.travels = false;
    SetTravels(result);
    demands.list.push_back(*std::move(sum));
  }
  demands.list.push_back(std::move(result));
  return demands;
}

bool Demands::result_travels() const {
  return absl::c_any_of(list, [](const Demand& demand) {
    return demand.travels && demand.consumer != Consumer::kMultiplies;
  });
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
  AGMM_RETURN_IF_ERROR(CheckClosed(problem));
  std::optional<std::pair<SplitCost, Split>> best;
  absl::Status none;
  const bool keeps_k = KeepsK(problem);
  for (const Split& split : Splits(problem)) {
    if (keeps_k && !split.k.empty()) continue;
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
