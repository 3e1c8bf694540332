#include "kernels/schedule/cells.h"

#include <algorithm>
#include <climits>
#include <utility>

namespace agmm {
namespace {

// The arrival time of a chunk: its step, and its number, because the chunks of a step are sent in
// the order of their numbers.
using Time = std::pair<int, int>;

// A block of C with its slices of K, in the order in which they arrive.
struct Group {
  std::vector<std::pair<Time, Cell>> cells;  // each with the arrival time of its inputs
  int leaves = INT_MAX;                      // the first step that sends the block

  int arrived() const { return cells.back().first.first; }
};

bool ArrivesBefore(const std::pair<Time, Cell>& x, const std::pair<Time, Cell>& y) {
  return x.first < y.first;
}

class CellMaker {
 public:
  CellMaker(const Problem& problem, const std::vector<Movement>& movements, Taking taking,
            Rank rank)
      : problem_(problem), movements_(movements), taking_(taking), rank_(rank) {}

  // Returns the movement of C if C leaves chunk by chunk, else null.
  const Movement* Leaving() const {
    for (const Movement& movement : movements_)
      if (movement.producer() == Producer::kMultiplies && IsCut(movement)) return &movement;
    return nullptr;
  }
  // The cells of one block of C, which no cut of the inputs divides.
  Group GroupOf(const Block& c, const std::vector<Range>& slices) const {
    const Product& product = TheProduct(problem_);
    Group group;
    for (const Range& k : slices) {
      const Ranges part = {Along(problem_, product.c, c, Dim::kM),
                           Along(problem_, product.c, c, Dim::kN), k};
      Cell cell;
      cell.a = BlockOf(problem_, product.a, part);
      cell.b = BlockOf(problem_, product.b, part);
      cell.c = c;
      group.cells.emplace_back(ArrivedAt(cell), cell);
    }
    std::stable_sort(group.cells.begin(), group.cells.end(), ArrivesBefore);
    for (auto& [time, cell] : group.cells) {
      cell.accumulate = &cell != &group.cells.front().second;
      cell.finish = &cell == &group.cells.back().second;
    }
    return group;
  }

 private:
  bool IsCut(const Movement& movement) const {
    return taking_ != Taking::kWhole && movement.travels();
  }
  Time ArrivedAt(const Cell& cell) const {
    Time time;
    int summed = 0;  // the steps before those of an input whose sum is closed first
    for (const Movement& input : movements_) {
      if (!IsCut(input) || problem_.Writes(input.operand())) continue;
      const bool sums = input.consumer() == Consumer::kSum;
      for (int chunk : input.ChunksOf(cell.ReadOf(input.operand()))) {
        int step = sums ? input.FinishStepAt(rank_, chunk) : input.StepAt(rank_, chunk);
        if (!sums && step > 0) step += summed;
        if (!sums || step > 0) time = std::max(time, {step, chunk});
      }
      summed = sums ? input.last_step() : 0;
    }
    return time;
  }

  const Problem& problem_;
  const std::vector<Movement>& movements_;
  const Taking taking_;
  const Rank rank_;
};

}  // namespace

Cuts::Cuts(const Problem& problem, const std::vector<std::pair<Operand, Grid>>& grids) {
  for (const Dim dim : {Dim::kM, Dim::kN, Dim::kK}) {
    std::vector<int64_t>& ends = ends_[static_cast<int>(dim)];
    for (const auto& [operand, grid] : grids) {
      if (!HasDim(problem, operand, dim)) continue;
      for (const Range& range : Along(problem, operand, grid, dim)) ends.push_back(range.end);
    }
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  }
}

std::vector<Range> Cuts::Of(const Range& range, Dim dim) const {
  std::vector<Range> parts;
  if (range.empty()) return parts;
  const std::vector<int64_t>& ends = ends_[static_cast<int>(dim)];
  int64_t begin = range.begin;
  for (auto end = std::upper_bound(ends.begin(), ends.end(), begin);
       end != ends.end() && *end < range.end; ++end) {
    parts.push_back({begin, *end});
    begin = *end;
  }
  parts.push_back({begin, range.end});
  return parts;
}

int64_t Cuts::Count(const Range& range, Dim dim) const {
  if (range.empty()) return 0;
  const std::vector<int64_t>& ends = ends_[static_cast<int>(dim)];
  const auto first = std::upper_bound(ends.begin(), ends.end(), range.begin);
  return std::lower_bound(first, ends.end(), range.end) - first + 1;
}

std::vector<int> ChunksMadeBy(const Problem& problem, const Movement& c, const Block& made,
                              Rank rank) {
  const Block wanted = ShardBlock(problem, TheProduct(problem).c, rank);
  // All of a sum that a rank has terms of.
  if (c.consumer() == Consumer::kSum) return c.ChunksOf(made);
  std::vector<int> chunks;
  for (int chunk : c.ChunksOf(made)) {
    const Chunk& one = c.chunks().list[chunk];
    const bool sends = std::any_of(one.sources.begin(), one.sources.end(),
                                   [&](const Source& source) { return source.rank == rank; });
    if (sends || !Intersect(wanted, one.block).empty()) chunks.push_back(chunk);
  }
  return chunks;
}

std::vector<Cell> CellsOf(const Problem& problem, const std::vector<Movement>& movements,
                          const Cuts& cuts, Taking taking, const LocalProduct& part, Rank rank) {
  if (part.empty()) return {};
  const CellMaker maker(problem, movements, taking, rank);
  const Operand c = TheProduct(problem).c;
  const Block made = NeededBlock(problem, c, part);
  const Movement* const leaving = maker.Leaving();
  const bool summed = leaving != nullptr && leaving->consumer() == Consumer::kSum;
  std::vector<std::pair<int, Block>> blocks;  // (chunk, block)
  if (leaving != nullptr) {
    for (int chunk : ChunksMadeBy(problem, *leaving, made, rank))
      blocks.emplace_back(chunk, leaving->chunks().list[chunk].block);
  } else {
    blocks.emplace_back(-1, made);
  }
  const std::vector<Range> slices = cuts.Of(part.k, Dim::kK);
  std::vector<Group> groups;
  for (const auto& [chunk, block] : blocks) {
    int leaves = INT_MAX;
    if (chunk >= 0) {
      if (const int hop = leaving->LeavingFrom(rank, chunk); hop >= 0)
        leaves = leaving->hops()[hop].step;
      // Terms that take turns in places are computed in the order in which they are added up.
      if (summed && taking == Taking::kByArrival) leaves = leaving->AddStepAt(rank, chunk);
      for (const Source& source : leaving->chunks().list[chunk].sources) {
        if (source.rank != rank || summed) continue;
        for (Rank to : source.needers) leaves = std::min(leaves, leaving->StepAt(to, chunk));
      }
    }
    for (const Range& m : cuts.Of(Along(problem, c, block, Dim::kM), Dim::kM)) {
      for (const Range& n : cuts.Of(Along(problem, c, block, Dim::kN), Dim::kN)) {
        groups.push_back(maker.GroupOf(BlockOf(problem, c, {m, n, part.k}), slices));
        groups.back().leaves = leaves;
        for (auto& [time, cell] : groups.back().cells) cell.c_chunk = chunk;
      }
    }
  }
  std::stable_sort(groups.begin(), groups.end(), [](const Group& x, const Group& y) {
    return std::pair(x.arrived(), x.leaves) < std::pair(y.arrived(), y.leaves);
  });
  const bool by_arrival = taking == Taking::kByArrival;
  std::vector<std::pair<Time, Cell>> ordered;
  int sums = 0;
  for (Group& group : groups) {
    // Cells of other blocks may come between those of this one, so that its sum cannot be on chip.
    // A pass on chip ends with a finished block, so terms are added up in the workspace, too.
    const bool apart = (by_arrival || summed) && group.cells.size() > 1;
    for (auto& [time, cell] : group.cells) {
      cell.sum = apart ? sums : -1;
      ordered.emplace_back(time, cell);
    }
    sums += apart;
  }
  if (by_arrival) std::stable_sort(ordered.begin(), ordered.end(), ArrivesBefore);
  std::vector<Cell> cells;
  cells.reserve(ordered.size());
  for (const auto& [time, cell] : ordered) cells.push_back(cell);
  return cells;
}

Carriers CarriersOf(const std::vector<Movement>& movements, const std::vector<Cell>& cells,
                    Rank rank) {
  const auto for_each_read = [&](const Cell& cell, auto use) {
    for (const Movement& input : movements) {
      if (input.consumer() != Consumer::kMultiplies) continue;
      const Block& block = cell.ReadOf(input.operand());
      for (int chunk : input.ChunksOf(block)) use(input, chunk, block);
    }
  };
  Carriers carriers;
  int latest = 0;  // the latest step that the cells so far wait for
  for (size_t begin = 0, end = 0; begin < cells.size(); begin = end) {
    // The cells of one tile pass, whose sum stays on chip until the last one.
    bool on_chip = true;
    while (on_chip) {
      const Cell& cell = cells[end++];
      on_chip = !cell.finish && cell.sum < 0;
      for_each_read(cell, [&](const Movement& input, int chunk, const Block&) {
        latest = std::max(latest, input.StepAt(rank, chunk));
      });
    }
    for (size_t i = begin; i < end; ++i) {
      for_each_read(cells[i], [&](const Movement& input, int chunk, const Block& block) {
        if (input.chunks().list[chunk].block == block && input.StepAt(rank, chunk) == latest)
          carriers.try_emplace({input.operand(), chunk}, static_cast<int>(i));
      });
    }
  }
  return carriers;
}

}  // namespace agmm
