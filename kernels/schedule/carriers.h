// The multiplies that can carry the sends of a chunk, for kernels that send the tiles they load.
#pragma once

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/cells.h"

namespace agmm {

// The position of the cell that carries a send, by operand and chunk.
using Carriers = absl::flat_hash_map<std::pair<Operand, int>, int>;

// Returns the cells that can carry sends. The first multiply of a chunk can carry the chunk's send
// if no tile pass up to this multiply waits for a chunk that arrives in a later step. Therefore
// ranks never wait for each other in a circle. `cells`: all cells of `rank`, in their order.
Carriers CarriersOf(const std::vector<Movement>& movements, const std::vector<Cell>& cells,
                    Rank rank);

// The lanes of one rank for carried sends. The sends of a lane are in the order of the multiplies
// that carry them.
class CarriedLanes {
 public:
  // Returns a lane from 0 to `lanes` - 1 on which a send can follow the earlier sends, or -1. Takes
  // the lanes in turn.
  int Take(int carrier, int lanes);

 private:
  std::vector<int> last_;  // the last carrier, by lane
  int next_ = 0;
};

}  // namespace agmm
