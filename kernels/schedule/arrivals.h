// The arrivals of one operand: where each chunk lies at the ranks that receive it, which slots say
// that it is there, and which credits let the place be written again.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/movement.h"
#include "kernels/schedule/schedule.h"
#include "kernels/schedule/split.h"

namespace agmm {

// Hands out the slots and the workspace of each rank.
class Resources {
 public:
  explicit Resources(int ranks) : slots_(ranks, 0), bytes_(ranks, 0) {}
  Slot NewSlot(Rank rank) { return {rank, slots_[rank]++}; }
  // Room for `rows` rows of `cols` elements.
  Place Allocate(Rank rank, int64_t rows, int64_t cols, DType dtype);
  int64_t most_bytes() const;

 private:
  std::vector<int> slots_;
  std::vector<int64_t> bytes_;
};

struct PlacedChunk {
  Place place;
  // Read where the sender has it: nothing is copied.
  bool in_place = false;
  // The arrival at the sender that is read in place; -1: its shard.
  int reads = -1;
  // Raised at the receiver. Unused where a shard is read in place.
  Slot arrived;
  // The hop whose sender waits until this one has been read, in this epoch or (lag 1) in the next.
  int next = -1, lag = 1;
  // One for each reader, at the sender of `next`. None in a shard, which is written once an epoch.
  std::vector<Slot> credits;
  size_t granted = 0;  // credits that readers have taken
};

// By hop of `movement`, with places, slots and credits. `places`: for a rank to begin with; 0: one
// each. `whole`: by rank, the place of the whole operand where it is contiguous.
std::vector<PlacedChunk> PlaceArrivals(const Problem& problem, const Topology& topology,
                                       const Work& work, const Movement& movement,
                                       Arrivals arrivals, int places,
                                       const std::vector<Place>& whole, Resources& resources);

}  // namespace agmm
