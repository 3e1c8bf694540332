// The multiplies of a rank in their order: blocks of C times slices of K, by the last arrival that
// each block waits for.
#pragma once

#include <vector>

#include "kernels/schedule/flow.h"
#include "kernels/schedule/split.h"

namespace agmm {

struct Cell {
  Block a, b, c;
  int c_chunk = -1;  // of C, where it is made chunk by chunk
  bool accumulate = false, finish = true;
  int sum = -1;  // the number of its sum in the workspace; -1: on chip
};

// The cuts of a product at every rank.
struct Cutting {
  const Problem& problem;
  const Flow &a, &b, &c;
  // True if multiplies read an input, or make C, chunk by chunk, not all of it at once.
  bool cut_a = false, cut_b = false, cut_c = false;
  // True if multiplies take the chunks in the order of their arrival, with the sums of several
  // slices of K in the workspace. Otherwise the slices of a block are one tile pass.
  bool by_arrival = false;
};

// `part`: of `rank`.
std::vector<Cell> CellsOf(const Cutting& cutting, const LocalProduct& part, Rank rank);

// The chunks of C that `rank` computes, because it wants them itself or sends them to others.
std::vector<int> ChunksMadeBy(const Problem& problem, const Flow& c, const Block& made, Rank rank);

}  // namespace agmm
