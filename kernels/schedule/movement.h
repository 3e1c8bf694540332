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
    bool passes = false;    // `to` does not need the chunk, but sends it on
  };
  // Chunks that leave one rank for another in one send: at least two, which form one block.
  struct Bundle {
    Rank from = 0, to = 0;
    Block block;
    std::vector<int> hops;  // ascending
  };

  // An operand that does not travel has no chunks.
  Movement(const Problem& problem, const Topology& topology, const Demand& demand,
           const Algorithm& algorithm);

  Operand operand() const { return operand_; }
  Producer producer() const { return producer_; }
  Consumer consumer() const { return consumer_; }
  // The dtype in which the terms of a sum travel.
  DType terms_dtype() const { return terms_dtype_; }
  // In a sum: each rank sends its terms to the others of its group, and adds up all terms itself.
  bool everywhere() const { return everywhere_; }
  const Chunks& chunks() const { return chunks_; }
  bool travels() const { return chunks_.travel; }
  // Ordered by step and then by chunk, so that the arrival of a chunk at a rank comes before the
  // hops that forward it.
  const std::vector<ChunkHop>& hops() const { return hops_; }
  const std::vector<Bundle>& bundles() const { return bundles_; }
  // The bundle of a hop; null if it leaves alone.
  const Bundle* BundleOf(int hop) const {
    const auto at = bundle_of_.find(hop);
    return at == bundle_of_.end() ? nullptr : &bundles_[at->second];
  }
  // The number of copies between ranks and, for bundles, within them.
  int64_t CountCopies() const;
  // The block that a rank sums; may be empty.
  const Block& summed_at(Rank rank) const { return summed_.at(rank); }
  // The hops of a sum that bring terms of a chunk to a rank, in their order.
  const std::vector<int>& TermsAt(Rank rank, int chunk) const;
  // The step in which the last terms of a chunk arrive at the rank that sums it; 0 at other ranks.
  int FinishStepAt(Rank rank, int chunk) const {
    const std::vector<int>& terms = TermsAt(rank, chunk);
    return terms.empty() || LeavingFrom(rank, chunk) >= 0 ? 0 : AddStepAt(rank, chunk);
  }
  // The step in which a rank adds up the terms that it has of a chunk: that in which it sends their
  // sum on, or one after the last terms arrive.
  int AddStepAt(Rank rank, int chunk) const {
    const int leaving = LeavingFrom(rank, chunk);
    return leaving >= 0 ? hops_[leaving].step : hops_[TermsAt(rank, chunk).back()].step + 1;
  }
  // The last step of a hop; 0 if there are none.
  int last_step() const { return hops_.empty() ? 0 : hops_.back().step; }
  // The hop of a sum that takes a chunk away from a rank; -1 if there is none.
  int LeavingFrom(Rank rank, int chunk) const {
    const auto at = leaving_.find({rank, chunk});
    return at == leaving_.end() ? -1 : at->second;
  }
  // The hops that take a rank's terms of a chunk to the other ranks, if all sum everywhere().
  const std::vector<int>& SpreadFrom(Rank rank, int chunk) const;
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
  bool PassesByHolder(const Demand& demand) const;
  bool MakeBundles();

  Operand operand_;
  Producer producer_;
  Consumer consumer_;
  DType terms_dtype_;
  bool everywhere_;
  Chunks chunks_;
  std::vector<ChunkHop> hops_;
  std::vector<Bundle> bundles_;
  absl::flat_hash_map<int, int> bundle_of_;  // by hop
  absl::flat_hash_map<std::pair<Rank, int>, int> arrivals_;
  std::vector<Block> summed_;                                          // of a sum, by rank
  absl::flat_hash_map<std::pair<Rank, int>, int> leaving_;             // of a sum
  absl::flat_hash_map<std::pair<Rank, int>, std::vector<int>> terms_;  // of a sum
  absl::flat_hash_map<std::pair<Rank, int>, std::vector<int>> spread_;
};

// The chunks of `demand`, with the ranks that send and that receive them.
Chunks RefineDemand(const Problem& problem, const Topology& topology, const Demand& demand,
                    const Algorithm& algorithm);

// Returns true if each chunk of a demand has one needer at most, and some rank exchanges chunks
// with several ranks: an all-to-all.
bool IsExchange(const Problem& problem, const Topology& topology, const Demand& demand);

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
