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
    Cell cell;
    cell.a = {product.a, c.rows, k};
    cell.b = {product.b, k, c.cols};
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
  const std::vector<Range> none;
  const auto rows = [](const Flow& flow) -> const std::vector<Range>& {
    return flow.chunks().rows;
  };
  const auto cols = [](const Flow& flow) -> const std::vector<Range>& {
    return flow.chunks().cols;
  };
  std::vector<Range> slices;
  for (const Range& k : CutAt(part.k, cutting.cut_a ? cols(cutting.a) : none)) {
    for (const Range& slice : CutAt(k, cutting.cut_b ? rows(cutting.b) : none))
      slices.push_back(slice);
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
    for (const Range& r : CutAt(block.rows, cutting.cut_a ? rows(cutting.a) : none)) {
      for (const Range& c : CutAt(block.cols, cutting.cut_b ? cols(cutting.b) : none)) {
        groups.push_back(GroupOf(cutting, {problem.product.c, r, c}, slices, rank));
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
