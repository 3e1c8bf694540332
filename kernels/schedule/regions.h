// What the bytes of one buffer mean, while Verify walks an epoch.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/schedule/footprint.h"
#include "kernels/schedule/schedule.h"

namespace agmm::verify {

// A block of A or B; a sum of C over some slices of K; or finished elements of C.
struct Region {
  Block block;
  Place place;
  std::vector<Range> slices = {};  // disjoint, in order; only of a sum
  bool finished = false;
};

// Where `inner` lies if `outer`, which contains it, lies at `place`.
Place PlaceWithin(const Block& outer, const Place& place, const Block& inner);

// Regions without a common byte; what no region holds is unknown.
class Regions {
 public:
  // Whatever lay under the region's footprint, padding included, is gone.
  void Write(const Region& region);

  // The pieces of `block` that lie where they would if all of it lay at `place`.
  std::vector<Region> Find(const Block& block, const Place& place) const;

  // A region on those bytes that holds something else, or (`same` too) any. Null if there is none.
  const Region* FindOther(const Block& block, const Place& place, bool same = false) const;

  // How many elements of `block` are not here, finished.
  int64_t Missing(const Block& block) const;

 private:
  std::vector<Region> regions_;
};

}  // namespace agmm::verify
