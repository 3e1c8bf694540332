// The multiplies that can carry the sends of a chunk, for kernels that send the tiles they load.
#pragma once

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/cells.h"

namespace agmm {

// By operand and chunk: the position of a cell.
using Carriers = absl::flat_hash_map<std::pair<Operand, int>, int>;

// A send can run along with the first multiply of its chunk if the tile passes until then wait for
// nothing that arrives in a later step than the chunk. So no ranks wait for one another in a
// circle. `cells`: those of `rank`, in their order.
Carriers CarriersOf(const std::vector<Movement>& movements, const std::vector<Cell>& cells,
                    Rank rank);

// Lanes of one rank for carried sends, each of which keeps the order of their multiplies.
class CarriedLanes {
 public:
  // Returns a lane from 0 to `lanes` - 1 on which a send can follow the earlier ones, the lanes in
  // turn; -1: none.
  int Take(int carrier, int lanes);

 private:
  std::vector<int> last_;  // carrier, by lane
  int next_ = 0;
};

}  // namespace agmm
