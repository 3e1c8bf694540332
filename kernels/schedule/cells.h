// The multiplies of a rank, each for a block of C and a slice of K, and which of them can carry
// sends. Blocks are in the order of the last arrival that each waits for.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/movement.h"
#include "kernels/schedule/split.h"

namespace agmm {

struct Cell {
  Block a, b, c;
  int c_chunk = -1;  // the chunk of C; -1 if C is not computed chunk by chunk
  bool accumulate = false, finish = true;
  int sum = -1;  // number of its sum in the workspace; -1: the sum is on chip

  // The block of an input that the cell reads.
  const Block& ReadOf(Operand input) const { return a.operand == input ? a : b; }
};

// The cuts of M, N and K by the chunks of all operands that travel.
class Cuts {
 public:
  // `grids`: the chunks of each of these operands.
  Cuts(const Problem& problem, const std::vector<std::pair<Operand, Grid>>& grids);
  // Returns the parts of a range between two cuts, ascending.
  std::vector<Range> Of(const Range& range, Dim dim) const;
  // Returns the number of these parts.
  int64_t Count(const Range& range, Dim dim) const;

 private:
  std::vector<int64_t> ends_[3];  // by dimension, distinct and ascending
};

// The order in which multiplies take the operands that travel.
enum class Taking {
  kWhole,      // all that a rank needs, in one multiply
  kChunks,     // chunk by chunk; the slices of a block form one tile pass
  kByArrival,  // in the order in which chunks arrive, with sums of several slices in the workspace
};

// The multiplies of `rank`, which computes `part`. `movements` has one for each operand; `cuts`: by
// the chunks of all operands that travel; none for Taking::kWhole.
std::vector<Cell> CellsOf(const Problem& problem, const std::vector<Movement>& movements,
                          const Cuts& cuts, Taking taking, const LocalProduct& part, Rank rank);

// The chunks of C that `rank` computes, because it needs them itself or sends them to others.
std::vector<int> ChunksMadeBy(const Problem& problem, const Movement& c, const Block& made,
                              Rank rank);

// The position of the cell that carries a send, by operand and chunk: for kernels that send the
// tiles they load.
using Carriers = absl::flat_hash_map<std::pair<Operand, int>, int>;

// Returns the cells that can carry sends. The first multiply of a chunk can carry the chunk's send
// if no tile pass up to this multiply waits for a chunk that arrives in a later step. Therefore
// ranks never wait for each other in a cycle. `cells`: all cells of `rank`, in their order.
Carriers CarriersOf(const std::vector<Movement>& movements, const std::vector<Cell>& cells,
                    Rank rank);

}  // namespace agmm
