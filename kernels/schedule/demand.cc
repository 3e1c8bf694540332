#include "kernels/schedule/demand.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
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

// The number of each rank's group: ranks with equal coordinates along `axes` are a group.
std::vector<int> GroupsAlong(const Mesh& mesh, const std::vector<int>& axes) {
  std::vector<int> groups;
  std::map<int, int> numbers;  // by position
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    const int position = PositionAlong(mesh, axes, rank).part;
    groups.push_back(numbers.try_emplace(position, static_cast<int>(numbers.size())).first->second);
  }
  return groups;
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
  const std::vector<int>& open = problem.tensors[operand].sharding.open;
  if (PartsAlong(problem.mesh, open) > 1) demand.groups = GroupsAlong(problem.mesh, open);
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

// The axes of the mesh that are not in `axes`.
std::vector<int> OtherAxes(const Mesh& mesh, const std::vector<int>& axes) {
  std::vector<int> others;
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis)
    if (!absl::c_linear_search(axes, axis)) others.push_back(axis);
  return others;
}

// The terms that ranks have of a result.
struct TermsHeld {
  Operand operand = 0;
  Producer producer = Producer::kMultiplies;
  std::vector<Block> blocks;  // by rank; empty for a rank that has none
  std::vector<int> summed;    // the axes along which ranks have different terms of one sum
};

// The sum of the terms: which rank sums which block. Ranks sum in their own shards if they can.
// Otherwise the ranks that have terms of a block sum equal pieces of it; if several groups have the
// same terms, the first one sums, and the blocks of the others are taken out of `held`.
Demand SumDemand(const Problem& problem, TermsHeld& held) {
  const int ranks = problem.mesh.size();
  const Operand operand = held.operand;
  Demand sum;
  sum.operand = operand;
  sum.producer = held.producer;
  sum.consumer = Consumer::kSum;
  sum.groups = GroupsAlong(problem.mesh, OtherAxes(problem.mesh, held.summed));
  sum.has.resize(ranks, {operand, {}, {}});
  std::vector<std::vector<Rank>> members(ranks);  // by group, without ranks that have no terms
  for (Rank rank = 0; rank < ranks; ++rank)
    if (!held.blocks[rank].empty()) members[sum.groups[rank]].push_back(rank);
  bool in_shards = true;
  for (const std::vector<Rank>& group : members) {
    in_shards &=
        group.empty() || SumInShards(problem, operand, held.blocks[group.front()], group, sum.has);
  }
  // A rank without terms cannot sum in its shard.
  for (Rank rank = 0; rank < ranks; ++rank)
    in_shards &= !held.blocks[rank].empty() || ShardBlock(problem, operand, rank).empty();
  const std::vector<int>& open = problem.tensors[operand].sharding.open;
  std::vector<std::pair<int, Block>> summed;  // with the part of a sum that is left open
  for (const std::vector<Rank>& group : members) {
    if (in_shards || group.empty()) continue;
    const std::pair one(PositionAlong(problem.mesh, open, group.front()).part,
                        held.blocks[group.front()]);
    const bool again = absl::c_linear_search(summed, one);
    if (!again) summed.push_back(one);
    const int parts = static_cast<int>(group.size());
    for (int i = 0; i < parts; ++i) {
      sum.has[group[i]] = again ? Block{operand, {}, {}} : PieceOf(one.second, parts, i);
      if (again) held.blocks[group[i]] = {operand, {}, {}};
    }
  }
  // Chunks of a sum end where shards do, so that each has one place. In shards, they do anyway.
  std::vector<Block> shards;
  for (Rank rank = 0; rank < ranks && !in_shards; ++rank) {
    const Block shard = ShardBlock(problem, operand, rank);
    if (!shard.empty()) shards.push_back(shard);
  }
  for (const Block& block : held.blocks) {
    sum.needs.push_back(block.empty() ? Blocks{}
                        : in_shards   ? Blocks{block}
                                      : CutByShards(block, shards));
  }
  SetTravels(sum);
  return sum;
}

// Adds the sum of `held`, and the way of the result from the ranks that sum it to its shards.
void AddSum(const Problem& problem, TermsHeld& held, Demand result, Demands& demands) {
  Demand sum = SumDemand(problem, held);
  result.producer = Producer::kSum;
  result.has = sum.has;
  result.travels = false;
  SetTravels(result);
  demands.list.push_back(std::move(sum));
  demands.list.push_back(std::move(result));
}

Demands DemandsOfProduct(const Problem& problem, const Split& split) {
  Demands demands;
  demands.work = WorkOf(problem, split);
  const Product& product = TheProduct(problem);
  TermsHeld held = {product.c, Producer::kMultiplies, {}, SummedAxes(problem, split)};
  if (demands.work.summed) {
    for (const LocalProduct& part : demands.work.parts) {
      held.blocks.push_back(part.empty() ? Block{product.c, {}, {}}
                                         : NeededBlock(problem, product.c, part));
    }
    Demands summed;
    AddSum(problem, held, ResultDemand(problem, product.c, demands.work), summed);
    for (Rank rank = 0; rank < problem.mesh.size(); ++rank)
      if (held.blocks[rank].empty()) demands.work.parts[rank] = {};
    demands.list = std::move(summed.list);
  } else {
    demands.list.push_back(ResultDemand(problem, product.c, demands.work));
  }
  std::vector<Demand> inputs;
  for (const Operand input : {product.a, product.b})
    inputs.push_back(InputDemand(problem, input, demands));
  demands.list.insert(demands.list.begin(), std::make_move_iterator(inputs.begin()),
                      std::make_move_iterator(inputs.end()));
  return demands;
}

Demands DemandsOfCollective(const Problem& problem) {
  const auto& [from, to] = TheCollective(problem);
  Demands demands;
  demands.work.parts.resize(problem.mesh.size());
  Demand result;
  result.operand = to;
  result.consumer = Consumer::kShard;
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    result.has.push_back(ShardBlock(problem, from, rank));
    result.has.back().operand = to;
    result.needs.push_back({ShardBlock(problem, to, rank)});
  }
  TermsHeld held = {to, Producer::kShard, result.has, {}};
  const std::vector<int>& open = problem.tensors[to].sharding.open;
  for (const int axis : problem.tensors[from].sharding.open)
    if (!absl::c_linear_search(open, axis)) held.summed.push_back(axis);
  if (OpenParts(problem.mesh, problem.tensors[to]) > 1)
    result.groups = GroupsAlong(problem.mesh, open);
  if (PartsAlong(problem.mesh, held.summed) > 1) {
    AddSum(problem, held, std::move(result), demands);
  } else {
    SetTravels(result);
    demands.list.push_back(std::move(result));
  }
  return demands;
}

}  // namespace

Demands DemandsOf(const Problem& problem, const Split& split) {
  return HasProduct(problem) ? DemandsOfProduct(problem, split) : DemandsOfCollective(problem);
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
    const std::string what =
        HasProduct(problem) ? absl::StrCat("split ", SplitText(problem, split)) : "the collective";
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s moves too many blocks of %s between %d ranks to be planned (%d pairs of a block and a "
        "rank, and at most %d are planned); use %sa smaller mesh",
        what, problem.tensors[demand.operand].name, problem.mesh.size(), size, kMost,
        HasProduct(problem) ? "another split or " : ""));
  }
  return absl::OkStatus();
}

absl::StatusOr<Split> ChooseSplit(const Problem& problem) {
  if (!HasProduct(problem)) {
    AGMM_RETURN_IF_ERROR(CheckDemands(problem, {}, DemandsOf(problem, {})));
    return Split{};
  }
  std::optional<std::pair<SplitCost, Split>> best;
  absl::Status none;
  const bool keeps_k = KeepsK(problem);
  for (const Split& split : Splits(problem)) {
    if (keeps_k && !SummedAxes(problem, split).empty()) continue;
    absl::Status status = CheckSplit(problem, split);
    const SplitCost cost = CostOf(problem, split);
    if (status.ok() && best && !IsBetter(cost, best->first)) continue;
    if (status.ok()) status = CheckDemands(problem, split, DemandsOf(problem, split));
    if (!status.ok()) {
      none = status;
      continue;
    }
    best = {cost, split};
  }
  if (!best) return none;
  return best->second;
}

}  // namespace agmm
