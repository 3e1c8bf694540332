// The cuts of a product into the local products of the ranks, and the blocks that each rank
// therefore has, needs, makes and wants. Pure arithmetic on rectangles, without movement.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/schedule/index.h"

namespace agmm {

// The mesh axes that cut each dimension of the local product, major first, as indices into
// Mesh::axes. Along all other axes, all ranks compute the same.
struct Split {
  std::vector<int> m, n, k;
  bool operator==(const Split&) const = default;
};

// "M=x,N=yz", by the names of the problem's dimensions; "none" for a split that cuts nothing.
std::string SplitText(const Problem& problem, const Split& split);

// Returns all splits: for each axis of more than one rank, M, N, K or none of them. The axes of a
// dimension are in the order in which C, A or B names them. A collective has one, which cuts
// nothing.
std::vector<Split> Splits(const Problem& problem);

// Returns true if both inputs have K whole. The planner then cuts K only along axes over which C
// leaves its sum open. A row of a closed C therefore has the same bits in any batch and on any
// mesh.
bool KeepsK(const Problem& problem);

// Returns the axes along which ranks have terms of the same sums and add them up: the ones that cut
// K, without those along which C leaves its sum open.
std::vector<int> SummedAxes(const Problem& problem, const Split& split);

// Checks that a product can be computed by `split`: that each rank gets a part of a sum that C
// leaves open. Errors: INVALID_ARGUMENT.
absl::Status CheckSplit(const Problem& problem, const Split& split);

// The part of the product of one rank. May be empty.
using LocalProduct = Ranges;

// The local products of all ranks under a split. If it cuts K, ranks make parts of one sum, and
// those beyond the length of K make nothing.
struct Work {
  bool c_travels = false;           // some rank wants elements of C that it does not make
  bool summed = false;              // several ranks make parts of one sum, and add them up
  std::vector<LocalProduct> parts;  // by rank
};
// Returns the work of a split. A rank makes only its own part of C, unless C travels or is summed.
Work WorkOf(const Problem& problem, const Split& split);
// Returns the block of an input that a part reads, or the block of C that it makes.
Block NeededBlock(const Problem& problem, Operand operand, const LocalProduct& part);

// The costs of a split. If it needs a sum, they are lower bounds: ranks that make parts of the same
// block reduce-scatter them in f32, cut evenly by elements, and then C moves to the ranks that want
// it.
struct SplitCost {
  int64_t busiest_bytes = 0;  // into the rank that receives most
  bool c_travels = false;     // so the transfers end only after the last multiply
  int64_t moved_bytes = 0;    // into all ranks
  int64_t flops = 0;          // of the rank that computes most; at most 4e18
  int64_t memory_bytes = 0;   // the most that a rank needs besides its shards
};
// Returns true if `x` is the better default. The criteria, in this order: it moves nothing, brings
// fewer bytes into the busiest rank, has fewer flops, leaves C where it is made.
bool IsBetter(const SplitCost& x, const SplitCost& y);
SplitCost CostOf(const Problem& problem, const Split& split);

}  // namespace agmm
