#include "kernels/schedule/cells.h"

#include <algorithm>
#include <climits>
#include <utility>

namespace agmm {
namespace {

// When something has arrived, in the order in which it is sent: the step, and the chunk.
using Time = std::pair<int, int>;

// A block of C with its slices of K, in the order in which they arrive.
struct Group {
  std::vector<std::pair<Time, Cell>> cells;  // with the time at which their inputs have arrived
  int leaves = INT_MAX;                      // the first step in which the block is sent on

  int arrived() const { return cells.back().first.first; }
};

Time ArrivedAt(const Flow& flow, bool cut, const Block& block, Rank rank) {
  Time time;
  if (!cut) return time;
  for (int chunk : flow.ChunksOf(block)) time = std::max(time, {flow.StepAt(rank, chunk), chunk});
  return time;
}

bool ArrivesBefore(const std::pair<Time, Cell>& x, const std::pair<Time, Cell>& y) {
  return x.first < y.first;
}

// The cells of one block of C, which no cut of the inputs divides.
Group GroupOf(const Cutting& cutting, const Block& c, const std::vector<Range>& slices, Rank rank) {
  const Roles& product = cutting.problem.product;
  Group group;
  for (const Range& k : slices) {
    const Ranges part = {Along(cutting.problem, product.c, c, Dim::kM),
                         Along(cutting.problem, product.c, c, Dim::kN), k};
    Cell cell;
    cell.a = BlockOf(cutting.problem, product.a, part);
    cell.b = BlockOf(cutting.problem, product.b, part);
    cell.c = c;
    group.cells.emplace_back(std::max(ArrivedAt(cutting.a, cutting.cut_a, cell.a, rank),
                                      ArrivedAt(cutting.b, cutting.cut_b, cell.b, rank)),
                             cell);
  }
  std::stable_sort(group.cells.begin(), group.cells.end(), ArrivesBefore);
  for (auto& [time, cell] : group.cells) {
    cell.accumulate = &cell != &group.cells.front().second;
    cell.finish = &cell == &group.cells.back().second;
  }
  return group;
}

}  // namespace

std::vector<int> ChunksMadeBy(const Problem& problem, const Flow& c, const Block& made, Rank rank) {
  const Block wanted = ShardBlock(problem, problem.product.c, rank);
  std::vector<int> chunks;
  for (int chunk : c.ChunksOf(made)) {
    const Chunk& one = c.chunks().list[chunk];
    const bool sends = std::any_of(one.sources.begin(), one.sources.end(),
                                   [&](const Source& source) { return source.rank == rank; });
    if (sends || !Intersect(wanted, one.block).empty()) chunks.push_back(chunk);
  }
  return chunks;
}

std::vector<Cell> CellsOf(const Cutting& cutting, const LocalProduct& part, Rank rank) {
  const Problem& problem = cutting.problem;
  if (part.empty()) return {};
  const auto cut = [&](const Range& range, bool cuts, const Flow& flow, Dim dim) {
    return cuts ? CutAt(range, Along(problem, flow.operand(), flow.chunks(), dim))
                : CutAt(range, {});
  };
  std::vector<Range> slices;
  for (const Range& k : cut(part.k, cutting.cut_a, cutting.a, Dim::kK)) {
    for (const Range& slice : cut(k, cutting.cut_b, cutting.b, Dim::kK)) slices.push_back(slice);
  }
  const Block made = NeededBlock(problem, problem.product.c, part);
  std::vector<std::pair<int, Block>> blocks;  // with their chunks
  if (cutting.cut_c) {
    for (int chunk : ChunksMadeBy(problem, cutting.c, made, rank))
      blocks.emplace_back(chunk, cutting.c.chunks().list[chunk].block);
  } else {
    blocks.emplace_back(-1, made);
  }
  std::vector<Group> groups;
  for (const auto& [chunk, block] : blocks) {
    int leaves = INT_MAX;
    if (chunk >= 0) {
      for (const Source& source : cutting.c.chunks().list[chunk].sources) {
        if (source.rank != rank) continue;
        for (Rank to : source.needers) leaves = std::min(leaves, cutting.c.StepAt(to, chunk));
      }
    }
    const Operand c = problem.product.c;
    const Range &rows = Along(problem, c, block, Dim::kM),
                &cols = Along(problem, c, block, Dim::kN);
    for (const Range& m : cut(rows, cutting.cut_a, cutting.a, Dim::kM)) {
      for (const Range& n : cut(cols, cutting.cut_b, cutting.b, Dim::kN)) {
        groups.push_back(GroupOf(cutting, BlockOf(problem, c, {m, n, part.k}), slices, rank));
        groups.back().leaves = leaves;
        for (auto& [time, cell] : groups.back().cells) cell.c_chunk = chunk;
      }
    }
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& x, const Group& y) {
    return std::pair(x.arrived(), x.leaves) < std::pair(y.arrived(), y.leaves);
  });
  std::vector<std::pair<Time, Cell>> ordered;
  int sums = 0;
  for (Group& group : groups) {
    // Cells of other blocks may come between those of this one, so that its sum cannot be on chip.
    const bool apart = cutting.by_arrival && group.cells.size() > 1;
    for (auto& [time, cell] : group.cells) {
      cell.sum = apart ? sums : -1;
      ordered.emplace_back(time, cell);
    }
    sums += apart;
  }
  if (cutting.by_arrival) std::stable_sort(ordered.begin(), ordered.end(), ArrivesBefore);
  std::vector<Cell> cells;
  cells.reserve(ordered.size());
  for (const auto& [time, cell] : ordered) cells.push_back(cell);
  return cells;
}

}  // namespace agmm
