// The operands that travel under a split, and into how many pieces they are cut.
#pragma once

#include <vector>

#include "kernels/schedule/chunks.h"
#include "kernels/schedule/split.h"

namespace agmm {

// The blocks of one operand that each rank has and needs; of C, that it makes and wants.
struct Move {
  Operand operand = 0;
  std::vector<Block> has, needs;  // by rank
  bool travels = false;           // some rank needs what it does not have
  bool along_k = false;           // an input that differs along K alone: whole slices arrive
  // Near-equal pieces of what travels as one.
  int row_pieces = 1, col_pieces = 1;
};

struct Moves {
  Work work;
  Move a, b, c;
};

// `chunks`: pieces along M and N; `k_chunks`: along K; `halves`: pieces of each of these that take
// different ways, cut along the dimension that is gathered.
Moves MovesOf(const Problem& problem, const Topology& topology, const Split& split, int chunks,
              int k_chunks, int halves);

Chunks RefineMove(const Problem& problem, const Topology& topology, const Move& move);

}  // namespace agmm
