// The arrivals of one operand: the place of each chunk at the ranks that receive it, the slots that
// are raised when it has arrived, and the credits that allow its place to be written again.
#pragma once

#include <cstdint>
#include <vector>

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
  // The chunk is not copied, but read at the sender's place.
  bool in_place = false;
  // The arrival at the sender that is read in place; -1: the sender's shard, or its sum.
  int reads = -1;
  // Raised at the receiver. Unused if a shard is read in place.
  Slot arrived;
  // The next hop into the same place, in this epoch or (lag 1) in the next. Its sender waits until
  // this arrival has been read.
  int next = -1, lag = 1;
  // One for each reader, at the sender of `next`. Empty in a shard, because a shard is written only
  // once in an epoch.
  std::vector<Slot> credits;
  size_t granted = 0;  // credits that readers have taken
};

// The arrivals of `movement`, by hop. `places`: the number of places that the arrivals at a rank
// share, unless they need more; 0: each arrival has its own place. `whole`: by rank, the place of a
// contiguous operand; empty for others. `bundles`: the place of each bundle at its sender.
std::vector<PlacedChunk> PlaceArrivals(const Problem& problem, const Work& work,
                                       const Movement& movement, int places,
                                       const std::vector<Place>& whole,
                                       const std::vector<Place>& bundles, Resources& resources);

}  // namespace agmm
