// The blocks of each operand that ranks have and need under a split, and the pieces into which they
// are cut.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/chunks.h"
#include "kernels/schedule/split.h"

namespace agmm {

// The origin of an operand's blocks before they travel, and their destination.
enum class Producer { kShard, kMultiplies };
enum class Consumer { kMultiplies, kShard };

// The blocks of one operand that each rank has and needs; of a result, that it makes and wants.
struct Demand {
  Operand operand = 0;
  Producer producer = Producer::kShard;
  Consumer consumer = Consumer::kMultiplies;
  std::vector<Block> has;  // by rank
  std::vector<Blocks> needs;
  bool travels = false;  // some rank needs what it does not have
  bool along_k = false;  // an input that differs along K alone: whole slices arrive
  // Near-equal pieces of what travels as one.
  struct {
    int rows = 1, cols = 1;
  } pieces;
};

struct Demands {
  Work work;
  std::vector<Demand> list;  // of the inputs, and at the end of the result
  // By rank: the blocks of the result that it computes. Where the result travels, several ranks may
  // be able to make the same of it, and each makes some of its part. Empty: all of the part.
  std::vector<Blocks> made;
  // A contiguous operand is multiplied whole, and some rank so makes what others make, too.
  bool makes_twice = false;

  const Demand& result() const { return list.back(); }
};

// Under a split, in one piece for each rank.
Demands DemandsOf(const Problem& problem, const Split& split);

// The input that travels in the larger shards; the result where no input travels.
const Demand& LargestDemand(const Problem& problem, const Demands& demands);

// The same in the pieces of an algorithm, where of ranks that can make the same of the result one
// makes each part of it. `chunks`: pieces along M and N; `k_chunks`: along K.
Demands CutDemands(const Problem& problem, const Topology& topology, const Split& split,
                   const Algorithm& algorithm, int chunks, int k_chunks);

// OK if the chunks that ranks exchange under a split are few enough to be looked at one by one.
// Errors: INVALID_ARGUMENT.
absl::Status CheckDemands(const Problem& problem, const Split& split, const Demands& demands);

// The best split without a sum (IsBetter); of equal ones the first. Errors: UNIMPLEMENTED if each
// needs a sum; those of CheckDemands.
absl::StatusOr<Split> ChooseSplit(const Problem& problem);

}  // namespace agmm
