// The movement of one operand: its chunks, all their hops, and its producer and consumer.
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
    bool in_place = false;  // nothing is copied: `to` reads the chunk where `from` has it
  };

  // An operand that does not travel has no chunks.
  Movement(const Problem& problem, const Topology& topology, const Demand& demand,
           const Algorithm& algorithm);

  Operand operand() const { return operand_; }
  Producer producer() const { return producer_; }
  Consumer consumer() const { return consumer_; }
  // The dtype in which the terms of a sum travel.
  DType terms_dtype() const { return terms_dtype_; }
  const Chunks& chunks() const { return chunks_; }
  bool travels() const { return chunks_.travel; }
  // Ordered by step and then by chunk, so that the arrival of a chunk at a rank comes before the
  // hops that forward it.
  const std::vector<ChunkHop>& hops() const { return hops_; }
  // The block that a rank sums; may be empty.
  const Block& summed_at(Rank rank) const { return summed_.at(rank); }
  // The hops of a sum that bring terms of a chunk to a rank, in their order.
  const std::vector<int>& TermsAt(Rank rank, int chunk) const;
  // The hop of a sum that takes a chunk away from a rank; -1 if there is none.
  int LeavingFrom(Rank rank, int chunk) const {
    const auto at = leaving_.find({rank, chunk});
    return at == leaving_.end() ? -1 : at->second;
  }
  // The index of the hop that brings a chunk to a rank; -1 if the rank has it from the beginning.
  int ArrivalAt(Rank rank, int chunk) const {
    const auto at = arrivals_.find({rank, chunk});
    return at == arrivals_.end() ? -1 : at->second;
  }
  // The step in which a chunk arrives at a rank; 0 if the rank has it from the beginning.
  int StepAt(Rank rank, int chunk) const {
    const int arrival = ArrivalAt(rank, chunk);
    return arrival < 0 ? 0 : hops_[arrival].step;
  }
  // The chunks that share elements with `block`, ordered by rows and then by columns.
  std::vector<int> ChunksOf(const Block& block) const;

 private:
  Operand operand_;
  Producer producer_;
  Consumer consumer_;
  DType terms_dtype_;
  Chunks chunks_;
  std::vector<ChunkHop> hops_;
  absl::flat_hash_map<std::pair<Rank, int>, int> arrivals_;
  std::vector<Block> summed_;                                          // of a sum, by rank
  absl::flat_hash_map<std::pair<Rank, int>, int> leaving_;             // of a sum
  absl::flat_hash_map<std::pair<Rank, int>, std::vector<int>> terms_;  // of a sum
};

// The chunks of `demand`, with the ranks that send and that receive them.
Chunks RefineDemand(const Problem& problem, const Topology& topology, const Demand& demand,
                    const Algorithm& algorithm);

// Above this, hops are not counted one by one, because that is slow and no daemon plans more.
inline constexpr int64_t kMostCountedHops = 1 << 17;
// Returns the number of hops of a Movement. Floating-point, because hostile options give more than
// 64 bits can count.
double CountHops(const Demand& demand);
// Returns the number of reductions of a sum: exact unless it has more than kMostCountedHops hops.
double CountReductions(const Problem& problem, const Topology& topology, const Demand& demand,
                       const Algorithm& algorithm);
// Returns the number of hops that copy, or of all hops if there are more than kMostCountedHops.
double CountCopies(const Problem& problem, const Topology& topology, const Demand& demand,
                   const Algorithm& algorithm);

}  // namespace agmm
