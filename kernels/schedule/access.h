// The bytes of a block at a place, and the reads and writes of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// Rows of `width` bytes, `pitch` apart.
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

// One read or write of a step. An executor may perform all accesses of a step concurrently.
struct Access {
  Rank rank = 0;  // of the step
  int step = 0;
  int to = -1;  // the arrival that makes the access, as in Event; -1: the step itself
  bool write = false;
  bool is_from = false;  // the read of Transfer::from
  Block block;
  Place place;
};
absl::InlinedVector<Access, 4> AccessesOf(const Step& step, Rank rank, int index);

// Returns the bytes that it touches; for a write, with the padding that the place owns.
Footprint FootprintOf(const Problem& problem, const Access& access);

// Bytes that other ranks receive from a rank's memory in one epoch: ranks of its own island, of
// other islands of its node, and of other nodes.
struct Traffic {
  int64_t own_island = 0, other_islands = 0, other_nodes = 0;
  int64_t own_node() const { return own_island + other_islands; }
  Traffic& operator+=(const Traffic& other);
};
// Returns the traffic by rank, for a schedule that verifies.
std::vector<Traffic> TrafficOf(const Topology& topology, const Schedule& schedule);

}  // namespace agmm
