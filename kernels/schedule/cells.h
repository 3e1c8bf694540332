// The multiplies of a rank in their order: blocks of C times slices of K, by the last arrival that
// each block waits for.
#pragma once

#include <vector>

#include "kernels/schedule/movement.h"
#include "kernels/schedule/split.h"

namespace agmm {

struct Cell {
  Block a, b, c;
  int c_chunk = -1;  // of C, where C is made chunk by chunk
  bool accumulate = false, finish = true;
  int sum = -1;  // the number of its sum in the workspace; -1: on chip

  // The block of an input that the cell reads.
  const Block& ReadOf(Operand input) const { return a.operand == input ? a : b; }
};

// The order in which multiplies take the operands that travel.
enum class Taking {
  kWhole,      // in one multiply of all that a rank needs
  kChunks,     // chunk by chunk, where the slices of a block are one tile pass
  kByArrival,  // in the order in which chunks arrive, with sums of several slices in the workspace
};

// `movements`: of the operands. `part`: of `rank`.
std::vector<Cell> CellsOf(const Problem& problem, const std::vector<Movement>& movements,
                          Taking taking, const LocalProduct& part, Rank rank);

// The chunks of C that `rank` computes, because it wants them itself or sends them to others.
std::vector<int> ChunksMadeBy(const Problem& problem, const Movement& c, const Block& made,
                              Rank rank);

}  // namespace agmm
