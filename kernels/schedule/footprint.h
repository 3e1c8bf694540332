// The bytes of a block at a place: rows of `width` bytes, `pitch` apart.
#pragma once

#include <cstdint>

#include "kernels/schedule/schedule.h"

namespace agmm {

struct Footprint {
  int64_t offset = 0, pitch = 0, rows = 0, width = 0;
  int64_t end() const { return offset + (rows - 1) * pitch + width; }
};

// The bytes of the block's elements.
Footprint FootprintOf(const Block& block, const Place& place);
// The same with the padding that the place owns (OwnsPadding), which a write may overwrite.
Footprint PaddedFootprintOf(const Problem& problem, const Block& block, const Place& place);

// Returns true if two footprints in one buffer share a byte. Exact.
bool Overlap(const Footprint& a, const Footprint& b);

}  // namespace agmm
