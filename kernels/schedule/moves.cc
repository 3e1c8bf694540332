#include "kernels/schedule/moves.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "kernels/schedule/cells.h"

namespace agmm {
namespace {

void FindOut(Move& move) {
  for (size_t rank = 0; rank < move.has.size(); ++rank) {
    for (const Block& needed : move.needs[rank])
      move.travels |= !needed.empty() && Intersect(move.has[rank], needed) != needed;
  }
}

// Returns true if each rank has all of what it needs along `dim`.
bool IsWhole(const Problem& problem, const Move& move, Dim dim) {
  const auto range = [&](const Block& block) -> const Range& {
    return Along(problem, move.operand, block, dim);
  };
  for (size_t rank = 0; rank < move.has.size(); ++rank) {
    for (const Block& block : move.needs[rank]) {
      const Range& needed = range(block);
      if (!block.empty() && Intersect(range(move.has[rank]), needed) != needed) return false;
    }
  }
  return true;
}

// Makes parts no larger than what a rank computes of them: with replicas, some compute for others
// and some do not.
void Shrink(const Problem& problem, const Flow& c, Moves& moves) {
  moves.made.resize(problem.mesh.size());
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    LocalProduct& part = moves.work.parts[rank];
    const Block made = NeededBlock(problem, problem.product.c, part);
    Block bounds = {
        problem.product.c, {made.rows.end, made.rows.begin}, {made.cols.end, made.cols.begin}};
    for (int chunk : ChunksMadeBy(problem, c, made, rank)) {
      const Block& block = c.chunks().list[chunk].block;
      moves.made[rank].push_back(block);
      bounds.rows = {std::min(bounds.rows.begin, block.rows.begin),
                     std::max(bounds.rows.end, block.rows.end)};
      bounds.cols = {std::min(bounds.cols.begin, block.cols.begin),
                     std::max(bounds.cols.end, block.cols.end)};
    }
    part.m = Along(problem, problem.product.c, bounds, Dim::kM);
    part.n = Along(problem, problem.product.c, bounds, Dim::kN);
  }
}

// Returns true if a rank multiplies a larger part than the blocks of C that it is to compute.
bool MakesMore(const Moves& moves) {
  for (size_t rank = 0; rank < moves.made.size(); ++rank) {
    const LocalProduct& part = moves.work.parts[rank];
    int64_t more = part.m.empty() || part.n.empty() ? 0 : part.m.size() * part.n.size();
    for (const Block& block : moves.made[rank]) more -= block.rows.size() * block.cols.size();
    if (more > 0) return true;
  }
  return false;
}

// The ranges without what they share, merged and in order.
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

// The blocks of an input that a rank multiplies with its `part`, or for these blocks of C alone.
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

Move InputMove(const Problem& problem, Operand operand, const Moves& moves) {
  Move move;
  move.operand = operand;
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    move.has.push_back(ShardBlock(problem, operand, rank));
    move.needs.push_back(Multiplied(problem, operand, moves.work.parts[rank],
                                    moves.made.empty() ? nullptr : &moves.made[rank]));
  }
  FindOut(move);
  move.along_k = move.travels && IsWhole(problem, move, OuterDim(problem, operand));
  return move;
}

}  // namespace

Moves MovesOf(const Problem& problem, const Split& split) {
  Moves moves;
  moves.work = WorkOf(problem, split);
  const Roles& product = problem.product;
  moves.c.operand = product.c;
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    moves.c.has.push_back(NeededBlock(problem, product.c, moves.work.parts[rank]));
    moves.c.needs.push_back({ShardBlock(problem, product.c, rank)});
  }
  FindOut(moves.c);
  moves.a = InputMove(problem, product.a, moves);
  moves.b = InputMove(problem, product.b, moves);
  return moves;
}

const Move& LargestMove(const Problem& problem, const Moves& moves) {
  const auto bytes = [&](const Move& move) {
    return move.travels ? ShardBytes(problem.mesh, problem.tensors[move.operand]) : 0;
  };
  const Move& larger = bytes(moves.a) >= bytes(moves.b) ? moves.a : moves.b;
  return larger.travels ? larger : moves.c;
}

Moves CutMoves(const Problem& problem, const Topology& topology, const Split& split,
               const Algorithm& algorithm, int chunks, int k_chunks) {
  Moves moves = MovesOf(problem, split);
  const Roles& product = problem.product;
  if (moves.c.travels) {
    const Flow c(problem, topology, product.c, RefineMove(problem, topology, moves.c, algorithm),
                 algorithm.route);
    Shrink(problem, c, moves);
    // A contiguous operand is multiplied whole.
    if (algorithm.arrivals == Arrivals::kContiguous) {
      moves.makes_twice = MakesMore(moves);
      moves.made.clear();
    }
    moves.a = InputMove(problem, product.a, moves);
    moves.b = InputMove(problem, product.b, moves);
  }
  // Inputs are cut along the dimension that is gathered. Where C travels, it leaves in the pieces
  // in which the larger input arrives, and the other input stays whole: pieces along both M and N
  // would make a multiply for each pair of them.
  const int halves = algorithm.pieces;
  const Dim cut_dim = OuterDim(problem, LargestMove(problem, moves).operand);
  Along(problem, product.c, moves.c.pieces, cut_dim) = chunks * halves;
  for (Move* input : {&moves.a, &moves.b}) {
    const Dim outer = OuterDim(problem, input->operand);
    const bool cut = !moves.c.travels || outer == cut_dim;
    Along(problem, input->operand, input->pieces, outer) =
        (cut ? chunks : 1) * (input->along_k ? 1 : halves);
    Along(problem, input->operand, input->pieces, Dim::kK) =
        k_chunks * (input->along_k ? halves : 1);
  }
  return moves;
}

Chunks RefineMove(const Problem& problem, const Topology& topology, const Move& move,
                  const Algorithm& algorithm) {
  return Refine(problem.mesh, topology, move.has, move.needs, move.pieces.rows, move.pieces.cols,
                algorithm.one_a_node);
}

absl::Status CheckMoves(const Problem& problem, const Split& split, const Moves& moves) {
  // In numbers of ranks that have or need a chunk; a chunk takes about as much as this many.
  constexpr int64_t kMost = 1 << 26, kChunk = 32;
  for (const Move* move : {&moves.a, &moves.b, &moves.c}) {
    if (!move->travels) continue;
    const Grid grid = GridOf(move->has, move->needs, 1, 1);
    int64_t size = kChunk * grid.size();
    const auto add = [&](const Block& block) {
      if (!block.empty())
        size +=
            Grid::Within(grid.rows, block.rows).size() * Grid::Within(grid.cols, block.cols).size();
    };
    absl::c_for_each(move->has, add);
    for (const Blocks& blocks : move->needs) absl::c_for_each(blocks, add);
    if (size <= kMost) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "split %s moves too many blocks of %s between %d ranks to be planned; use another split or "
        "a smaller mesh",
        SplitText(problem, split), problem.tensors[move->operand].name, problem.mesh.size()));
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
    if (absl::Status status = CheckMoves(problem, split, MovesOf(problem, split)); !status.ok()) {
      none = status;
      continue;
    }
    best = {cost, split};
  }
  if (!best) return none;
  return best->second;
}

}  // namespace agmm
