// The multiplies of a rank, each for a block of C and a slice of K, in the order of the last
// arrivals that the blocks wait for.
#pragma once

#include <vector>

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

// The order in which multiplies take the operands that travel.
enum class Taking {
  kWhole,      // all that a rank needs, in one multiply
  kChunks,     // chunk by chunk; the slices of a block form one tile pass
  kByArrival,  // in the order in which chunks arrive, with sums of several slices in the workspace
};

// The multiplies of `rank`, which computes `part`. `movements` has one for each operand.
std::vector<Cell> CellsOf(const Problem& problem, const std::vector<Movement>& movements,
                          Taking taking, const LocalProduct& part, Rank rank);

// The chunks of C that `rank` computes, because it needs them itself or sends them to others.
std::vector<int> ChunksMadeBy(const Problem& problem, const Movement& c, const Block& made,
                              Rank rank);

}  // namespace agmm
