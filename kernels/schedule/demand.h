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
enum class Producer { kShard, kMultiplies, kSum };
enum class Consumer { kMultiplies, kShard, kSum };

// The blocks of one operand that each rank has before the operand travels, and the blocks that it
// needs afterwards. Of a result, a rank has the blocks that it computes or sums, and needs its
// shard. Of an input with an open sum, a rank has the blocks that it sums.
// A sum is described backwards: a rank has the block that it sums, and needs the block to which it
// adds terms.
struct Demand {
  Operand operand = 0;
  Producer producer = Producer::kShard;
  Consumer consumer = Consumer::kMultiplies;
  std::vector<Block> has;  // by rank
  std::vector<Blocks> needs;
  DType terms_dtype = DType::kF32;  // of a sum: in which its terms travel
  bool travels = false;             // some rank needs elements that it does not have
  // In a sum: each rank of a group sums every element of which the group has terms. The finished
  // sum then does not travel.
  bool everywhere = false;
  bool along_k = false;  // an input of which ranks lack only whole slices of K
  // By rank, the number of its group: blocks travel only between ranks of one group. Empty: all
  // ranks are one group. The ranks of a sum's group have different terms of the same elements. If
  // the result leaves its sum open, the ranks of a group have the same part of it.
  std::vector<int> groups;
  // The number of nearly equal pieces into which each block that travels is cut.
  struct {
    int rows = 1, cols = 1;
  } pieces;
};

// Returns the dtype in which the operand, or its terms, travel.
inline DType DTypeOf(const Problem& problem, const Demand& demand) {
  return demand.consumer == Consumer::kSum ? demand.terms_dtype
                                           : problem.tensors[demand.operand].dtype;
}

struct Demands {
  Work work;
  // The inputs, then the result. If an operand is a sum, the demand of its terms comes just before.
  std::vector<Demand> list;
  // The blocks of the result that each rank computes, by rank. If the result travels, several ranks
  // may be able to compute the same block, so each computes only some blocks of its part. Empty:
  // each rank computes its whole part.
  std::vector<Blocks> made;
  // True if a rank computes blocks that another rank computes too, because it multiplies a
  // contiguous operand as a whole.
  bool makes_twice = false;

  const Demand& result() const { return list.back(); }
  // Returns true if ranks exchange elements of the result, or terms of its sum.
  bool result_travels() const;
};

// The demands of a split, not yet cut into pieces. A collective has no inputs that travel: its
// source is where the result comes from.
Demands DemandsOf(const Problem& problem, const Split& split);
// Recomputes the demands of the inputs from `work` and `made`.
void UpdateInputs(const Problem& problem, Demands& demands);

// The demand of the travelling input with the larger shards (of its sum, if nothing else of it
// travels), or of the result if no input travels.
const Demand& LargestDemand(const Problem& problem, const Demands& demands);

// Errors: INVALID_ARGUMENT if ranks exchange too many chunks under a split to plan each of them.
absl::Status CheckDemands(const Problem& problem, const Split& split, const Demands& demands);

// Returns the best split (IsBetter) without regard to a machine, or the first of several equally
// good ones, under the rule of KeepsK; the empty one for a collective. Errors: those of
// CheckDemands and CheckSplit.
absl::StatusOr<Split> DefaultSplit(const Problem& problem);

}  // namespace agmm
