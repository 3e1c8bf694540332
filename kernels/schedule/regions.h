// The contents of one buffer, while Verify walks through an epoch.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "kernels/schedule/access.h"
#include "kernels/schedule/schedule.h"
#include "kernels/schedule/terms.h"

namespace agmm {

// A block of an input; a sum of C over some of its terms; or finished elements of C.
struct Region {
  Block block;
  Place place;
  Terms terms = {};  // of a sum, and of finished elements whose tensor leaves the sum open
  bool finished = false;
};

// Disjoint regions. Bytes in none of them are unknown.
class Regions {
 public:
  // Adds a region and removes the old contents of `written`, which includes the bytes of its block.
  // Merges finished regions that form one rectangle.
  void Write(const Region& region, const Footprint& written);

  // Returns the pieces of `block` that are where they belong if all of it is at `place`.
  std::vector<Region> Find(const Block& block, const Place& place) const;

  // Returns a region with other contents (`same`: any) on bytes of `block` at `place`, or null.
  const Region* FindOther(const Block& block, const Place& place, bool same = false) const;

  // Returns the number of elements of `block` that are not finished here.
  int64_t Missing(const Block& block) const;

 private:
  using ByOffset = std::multimap<int64_t, Region>;

  // Calls `use` with each region that may share bytes with `footprint`, until it returns false.
  template <typename Use>
  void ForEachNear(const Footprint& footprint, Use use) const;
  void Add(const Region& region);
  // Unites `region` with an adjacent finished one. Returns false if it has no such neighbour.
  bool Unite(Region& region);

  ByOffset regions_;     // by their first byte
  int64_t longest_ = 0;  // bytes from the first to the last of a region, at most
};

}  // namespace agmm
