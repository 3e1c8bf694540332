// Products whose operands need a sharding.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/schedule/problem.h"

namespace agmm {

struct AdviceRequest {
  // Valid, on one mesh, with closed sums and the operands at tensors[kA], [kB] and [kC]. The result
  // of each product but the last is an input of the next one, with the same name. It needs no
  // reshard between them, because a product may move its result, and the next one its inputs.
  std::vector<Problem> products;
  // By product and operand: true if it keeps its sharding, which else is chosen.
  std::vector<std::array<bool, 3>> keeps;
  // The most that a rank may use for the shards of all operands and for the largest workspace.
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();
  int top = 10;  // the most entries of the answer
};

}  // namespace agmm
