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
  demand.travels = false;
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

// The terms that ranks have of an operand, and who wants their sum.
struct TermsHeld {
  Operand operand = 0;
  Producer producer = Producer::kMultiplies;
  std::vector<Block> blocks;  // by rank; empty for a rank that has none
  std::vector<int> summed;    // the axes along which ranks have different terms of one sum
  std::vector<int> open;      // the axes along which the sum stays open
  std::vector<Block> wanted;  // by rank: the block of the sum that it keeps or multiplies
  // True: a group may omit elements that none of its ranks wants.
  bool may_omit = false;
};

// The block that each rank of a sum sums, in `sums`: what it wants of it, which it divides with the
// ranks that want the same block. Sets `all` if ranks want every element of which they have terms.
// Returns false if these blocks overlap, or if a rank wants elements of which the group has no
// terms.
bool SumWhereWanted(const TermsHeld& held, const std::vector<Rank>& ranks, std::vector<Block>& sums,
                    bool& all) {
  const Block& made = held.blocks[ranks.front()];
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, std::vector<Rank>> by_block;
  for (Rank rank : ranks) {
    const Block& wanted = held.wanted[rank];
    if (wanted.empty()) continue;
    if (Intersect(wanted, made) != wanted) return false;
    by_block[{wanted.rows.begin, wanted.rows.end, wanted.cols.begin, wanted.cols.end}].push_back(
        rank);
  }
  int64_t elements = 0;
  std::vector<Block> blocks;
  for (const auto& [key, wanting] : by_block) {
    const Block& block = held.wanted[wanting.front()];
    for (const Block& other : blocks)
      if (!Intersect(block, other).empty()) return false;
    blocks.push_back(block);
    elements += SizeOf(block);
    const int parts = static_cast<int>(wanting.size());
    for (int i = 0; i < parts; ++i) sums[wanting[i]] = PieceOf(block, parts, i);
  }
  all = elements == SizeOf(made);
  return true;
}

// Cuts a block at all ends of other blocks.
Blocks CutBy(const Block& block, const std::vector<Block>& others) {
  const auto ranges = [&](Range Block::*along) {
    std::vector<int64_t> ends = {(block.*along).begin, (block.*along).end};
    for (const Block& other : others) {
      if (other.empty()) continue;
      for (const int64_t end : {(other.*along).begin, (other.*along).end})
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

// The distinct blocks that the ranks of a group want.
Blocks WantedBy(const TermsHeld& held, const std::vector<Rank>& group) {
  Blocks wanted;
  for (const Rank rank : group) {
    const Block& block = held.wanted[rank];
    if (!block.empty() && !absl::c_linear_search(wanted, block)) wanted.push_back(block);
  }
  return wanted;
}

// The sum of the terms: which rank sums which block. Ranks sum what they want if they can.
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
  // A rank without terms cannot sum what it wants.
  bool where_wanted = true, all_wanted = true;
  for (Rank rank = 0; rank < ranks; ++rank)
    where_wanted &= !held.blocks[rank].empty() || held.wanted[rank].empty();
  for (const std::vector<Rank>& group : members) {
    bool all = true;
    where_wanted &= group.empty() || SumWhereWanted(held, group, sum.has, all);
    all_wanted &= all;
  }
  if (where_wanted && (all_wanted || held.may_omit)) {
    sum.needs.resize(ranks);
    for (const std::vector<Rank>& group : members) {
      const Blocks terms = group.empty() ? Blocks{}
                           : all_wanted  ? Blocks{held.blocks[group.front()]}
                                         : WantedBy(held, group);
      for (const Rank rank : group) sum.needs[rank] = terms;
    }
    SetTravels(sum);
    return sum;
  }
  std::vector<std::pair<int, Block>> summed;  // with the part of a sum that is left open
  for (const std::vector<Rank>& group : members) {
    if (group.empty()) continue;
    const std::pair one(PositionAlong(problem.mesh, held.open, group.front()).part,
                        held.blocks[group.front()]);
    const bool again = absl::c_linear_search(summed, one);
    if (!again) summed.push_back(one);
    const int parts = static_cast<int>(group.size());
    for (int i = 0; i < parts; ++i) {
      sum.has[group[i]] = again ? Block{operand, {}, {}} : PieceOf(one.second, parts, i);
      if (again) held.blocks[group[i]] = {operand, {}, {}};
    }
  }
  // Chunks of a sum end where the wanted blocks do, so that each has one place.
  for (const Block& block : held.blocks)
    sum.needs.push_back(block.empty() ? Blocks{} : CutBy(block, held.wanted));
  SetTravels(sum);
  return sum;
}

// Adds two demands: the sum of `held`, and the movement of the result from the ranks that summed it
// to the ranks that need it.
void AddSum(const Problem& problem, TermsHeld& held, Demand demand, std::vector<Demand>& list) {
  Demand sum = SumDemand(problem, held);
  demand.producer = Producer::kSum;
  demand.has = sum.has;
  list.push_back(std::move(sum));
  list.push_back(std::move(demand));
}

std::vector<Block> ShardBlocks(const Problem& problem, Operand operand) {
  std::vector<Block> blocks;
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank)
    blocks.push_back(ShardBlock(problem, operand, rank));
  return blocks;
}

// Adds the demands of an input to those of the product: it is multiplied, and summed before if its
// sum is open.
void AddInput(const Problem& problem, Operand operand, const Demands& demands,
              std::vector<Demand>& list) {
  Demand demand;
  demand.operand = operand;
  demand.has = ShardBlocks(problem, operand);
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    demand.needs.push_back(Multiplied(problem, operand, demands.work.parts[rank],
                                      demands.made.empty() ? nullptr : &demands.made[rank]));
  }
  const std::vector<int>& open = problem.tensors[operand].sharding.open;
  if (PartsAlong(problem.mesh, open) > 1) {
    TermsHeld held = {operand, Producer::kShard, demand.has, open, {}, {}, true};
    for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
      const Block needed = NeededBlock(problem, operand, demands.work.parts[rank]);
      held.wanted.push_back(Intersect(demand.has[rank], needed));
      // No element may be omitted if a rank of another group needs some of them.
      held.may_omit &= needed.empty() || held.wanted.back() == needed;
    }
    AddSum(problem, held, std::move(demand), list);
  } else {
    list.push_back(std::move(demand));
  }
  SetTravels(list.back());
  list.back().along_k =
      list.back().travels && IsWhole(problem, list.back(), OuterDim(problem, operand));
}

// The demands of both inputs.
std::vector<Demand> InputDemands(const Problem& problem, const Demands& demands) {
  std::vector<Demand> list;
  for (const Operand input : {TheProduct(problem).a, TheProduct(problem).b})
    AddInput(problem, input, demands, list);
  return list;
}

Demands DemandsOfProduct(const Problem& problem, const Split& split) {
  Demands demands;
  demands.work = WorkOf(problem, split);
  const Operand c = TheProduct(problem).c;
  Demand result = ResultDemand(problem, c, demands.work);
  std::vector<Demand> of_result;
  if (demands.work.summed) {
    TermsHeld held = {c,
                      Producer::kMultiplies,
                      {},
                      SummedAxes(problem, split),
                      problem.tensors[c].sharding.open,
                      ShardBlocks(problem, c),
                      // Multiplies make all terms of a block.
                      false};
    for (const LocalProduct& part : demands.work.parts)
      held.blocks.push_back(part.empty() ? Block{c, {}, {}} : NeededBlock(problem, c, part));
    AddSum(problem, held, std::move(result), of_result);
    for (Rank rank = 0; rank < problem.mesh.size(); ++rank)
      if (held.blocks[rank].empty()) demands.work.parts[rank] = {};
  } else {
    of_result.push_back(std::move(result));
  }
  SetTravels(of_result.back());
  demands.list = InputDemands(problem, demands);
  absl::c_move(of_result, std::back_inserter(demands.list));
  return demands;
}

Demands DemandsOfCollective(const Problem& problem) {
  const auto& [from, to] = TheCollective(problem);
  Demands demands;
  demands.work.parts.resize(problem.mesh.size());
  Demand result;
  result.operand = to;
  result.consumer = Consumer::kShard;
  result.has = ShardBlocks(problem, from);
  for (Block& block : result.has) block.operand = to;
  TermsHeld held = {to,
                    Producer::kShard,
                    result.has,
                    {},
                    problem.tensors[to].sharding.open,
                    ShardBlocks(problem, to),
                    true};
  for (const Block& block : held.wanted) result.needs.push_back({block});
  for (const int axis : problem.tensors[from].sharding.open)
    if (!absl::c_linear_search(held.open, axis)) held.summed.push_back(axis);
  if (PartsAlong(problem.mesh, held.open) > 1) result.groups = GroupsAlong(problem.mesh, held.open);
  if (PartsAlong(problem.mesh, held.summed) > 1) {
    AddSum(problem, held, std::move(result), demands.list);
  } else {
    demands.list.push_back(std::move(result));
  }
  SetTravels(demands.list.back());
  return demands;
}

}  // namespace

Demands DemandsOf(const Problem& problem, const Split& split) {
  return HasProduct(problem) ? DemandsOfProduct(problem, split) : DemandsOfCollective(problem);
}

bool Demands::result_travels() const {
  return absl::c_any_of(list, [this](const Demand& demand) {
    return demand.travels && demand.operand == result().operand;
  });
}

void UpdateInputs(const Problem& problem, Demands& demands) {
  std::vector<Demand> list = InputDemands(problem, demands);
  for (Demand& demand : demands.list)
    if (problem.Writes(demand.operand)) list.push_back(std::move(demand));
  demands.list = std::move(list);
}

const Demand& LargestDemand(const Problem& problem, const Demands& demands) {
  const Demand* largest = &demands.result();
  std::pair<int64_t, bool> most;
  for (const Demand& demand : demands.list) {
    if (problem.Writes(demand.operand) || !demand.travels) continue;
    const std::pair size(ShardBytes(problem.mesh, problem.tensors[demand.operand]),
                         demand.consumer == Consumer::kMultiplies);
    if (size <= most) continue;
    most = size;
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

absl::StatusOr<Split> DefaultSplit(const Problem& problem) {
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
