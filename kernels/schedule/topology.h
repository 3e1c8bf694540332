// The node and the island of each rank. Ranks of different nodes exchange messages; ranks of one
// node and one island load and store each other's memory.
#pragma once

#include <vector>

#include "absl/status/statusor.h"

namespace agmm {

// A rank of a mesh: an index into Mesh::ranks, and so into Schedule::ranks. Schedules use only
// these; the mesh maps them to ranks of the world.
using Rank = int;

struct Topology {
  std::vector<int> node_of_rank;
  // Numbers within the node. Empty: each node is one island.
  std::vector<int> island_of_rank = {};

  int rank_count() const { return static_cast<int>(node_of_rank.size()); }
  bool SameNode(Rank a, Rank b) const { return node_of_rank[a] == node_of_rank[b]; }
  bool CanLoad(Rank a, Rank b) const {
    return SameNode(a, b) && (island_of_rank.empty() || island_of_rank[a] == island_of_rank[b]);
  }
  bool operator==(const Topology&) const = default;
};

// Errors: INVALID_ARGUMENT unless all ranks have an island or none has.
absl::Status CheckIslands(const Topology& topology);

// Puts `ranks` ranks in order on `nodes` nodes, `devices_per_node` on each (0: ranks / nodes).
// Errors: INVALID_ARGUMENT when the ranks do not fit, or do not divide and no count is given.
absl::StatusOr<Topology> UniformTopology(int ranks, int nodes, int devices_per_node = 0);

}  // namespace agmm
