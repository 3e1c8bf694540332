// The memory accesses of a step, and the names of the touched places in errors.
#pragma once

#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kernels/schedule/footprint.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// One read or write of a step. Executors may do all accesses of a step at the same time.
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

// Bytes that other ranks receive from a rank's memory in one epoch, by the receivers' place: in its
// own island, in other islands of its node, and on other nodes.
struct Traffic {
  int64_t own_island = 0, other_islands = 0, other_nodes = 0;
  int64_t own_node() const { return own_island + other_islands; }
  Traffic& operator+=(const Traffic& other);
};
// Returns the traffic by rank, for a schedule that verifies.
std::vector<Traffic> TrafficOf(const Topology& topology, const Schedule& schedule);

// "A[0:4, 0:8]".
std::string BlockName(const Problem& problem, const Block& block);
// "rank 1's workspace", "rank 1's A".
std::string BufferName(const Problem& problem, Rank rank, Buffer buffer);
// "A[0:4, 0:8] at byte 512 of rank 1's workspace".
std::string PlacedName(const Problem& problem, const Block& block, const Place& place);

}  // namespace agmm
