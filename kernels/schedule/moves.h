// The operands that travel under a split, and into how many pieces they are cut.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/chunks.h"
#include "kernels/schedule/split.h"

namespace agmm {

// The blocks of one operand that each rank has and needs; of C, that it makes and wants.
struct Move {
  Operand operand = 0;
  std::vector<Block> has;  // by rank
  std::vector<Blocks> needs;
  bool travels = false;  // some rank needs what it does not have
  bool along_k = false;  // an input that differs along K alone: whole slices arrive
  // Near-equal pieces of what travels as one.
  struct {
    int rows = 1, cols = 1;
  } pieces;
};

struct Moves {
  Work work;
  Move a, b, c;
  // By rank: the blocks of C that it computes. Where C travels, several ranks may be able to make
  // the same of it, and each makes some of its part. Empty: all of the part.
  std::vector<Blocks> made;
  // A contiguous operand is multiplied whole, and some rank so makes what others make, too.
  bool makes_twice = false;
};

// The operands that travel under a split, in one piece for each rank.
Moves MovesOf(const Problem& problem, const Split& split);

// The input that travels in the larger shards; C where no input travels.
const Move& LargestMove(const Problem& problem, const Moves& moves);

// The same in the pieces of an algorithm, where of ranks that can make the same of C one makes each
// part of it. `chunks`: pieces along M and N; `k_chunks`: along K.
Moves CutMoves(const Problem& problem, const Topology& topology, const Split& split,
               const Algorithm& algorithm, int chunks, int k_chunks);

Chunks RefineMove(const Problem& problem, const Topology& topology, const Move& move,
                  const Algorithm& algorithm);

// OK if the chunks that ranks exchange under a split are few enough to be looked at one by one.
// Errors: INVALID_ARGUMENT.
absl::Status CheckMoves(const Problem& problem, const Split& split, const Moves& moves);

// The best split without a sum (IsBetter); of equal ones the first. Errors: UNIMPLEMENTED if each
// needs a sum; those of CheckMoves.
absl::StatusOr<Split> ChooseSplit(const Problem& problem);

}  // namespace agmm
