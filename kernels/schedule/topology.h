// The node of each rank. Ranks of one node can load and store each other's memory; ranks of
// different nodes exchange messages.
#pragma once

#include <vector>

#include "absl/status/statusor.h"

namespace agmm {

// A rank of a mesh: an index into Mesh::ranks, and so into Schedule::ranks. Schedules use these
// alone; the mesh maps them to ranks of the world.
using Rank = int;

struct Topology {
  std::vector<int> node_of_rank;

  int rank_count() const { return static_cast<int>(node_of_rank.size()); }
  bool SameNode(Rank a, Rank b) const { return node_of_rank[a] == node_of_rank[b]; }
  bool operator==(const Topology&) const = default;
};

// Puts `ranks` ranks in order on `nodes` nodes, `devices_per_node` on each (0: ranks / nodes).
// Errors: INVALID_ARGUMENT when the ranks do not fit, or do not divide and no count is given.
absl::StatusOr<Topology> UniformTopology(int ranks, int nodes, int devices_per_node = 0);

}  // namespace agmm
