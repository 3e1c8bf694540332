// The movement of one operand: its chunks, all their hops, and what is at both ends.
#pragma once

#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/chunks.h"
#include "kernels/schedule/demand.h"
#include "kernels/schedule/routes.h"

namespace agmm {

class Movement {
 public:
  struct ChunkHop {
    int chunk = 0;
    Rank from = 0, to = 0;
    int step = 0;
  };

  // An operand that does not travel has no chunks.
  Movement(const Problem& problem, const Topology& topology, const Demand& demand,
           const Algorithm& algorithm);

  Operand operand() const { return operand_; }
  Producer producer() const { return producer_; }
  Consumer consumer() const { return consumer_; }
  const Chunks& chunks() const { return chunks_; }
  bool travels() const { return chunks_.travel; }
  // By step and then by chunk, so that a chunk arrives at a rank before it leaves it again.
  const std::vector<ChunkHop>& hops() const { return hops_; }
  // The index of the hop that brings a chunk to a rank; -1 where it is held.
  int ArrivalAt(Rank rank, int chunk) const {
    const auto at = arrivals_.find({rank, chunk});
    return at == arrivals_.end() ? -1 : at->second;
  }
  // When it arrives; 0 where it is held.
  int StepAt(Rank rank, int chunk) const {
    const int arrival = ArrivalAt(rank, chunk);
    return arrival < 0 ? 0 : hops_[arrival].step;
  }
  // The chunks that share elements with `block`, by rows and then by columns.
  std::vector<int> ChunksOf(const Block& block) const;

 private:
  Operand operand_;
  Producer producer_;
  Consumer consumer_;
  Chunks chunks_;
  std::vector<ChunkHop> hops_;
  absl::flat_hash_map<std::pair<Rank, int>, int> arrivals_;
};

// The chunks that `demand` is cut into, and who sends each to whom.
Chunks RefineDemand(const Problem& problem, const Topology& topology, const Demand& demand,
                    const Algorithm& algorithm);

}  // namespace agmm
