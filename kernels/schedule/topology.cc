#include "kernels/schedule/topology.h"

#include "absl/strings/str_format.h"
#include "kernels/base/units.h"

namespace agmm {

absl::Status CheckIslands(const Topology& topology) {
  if (topology.island_of_rank.empty() ||
      topology.island_of_rank.size() == topology.node_of_rank.size())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%d islands for %d ranks; give every rank its island, or none",
                      topology.island_of_rank.size(), topology.rank_count()));
}

absl::StatusOr<Topology> UniformTopology(int ranks, int nodes, int devices_per_node) {
  if (ranks < 1 || nodes < 1 || devices_per_node < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d ranks on %d nodes with %d devices each: every count must be positive",
                        ranks, nodes, devices_per_node));
  }
  if (devices_per_node == 0) {
    if (ranks % nodes != 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s cannot be divided evenly over %s; give the devices of a node",
                          Counted(ranks, "rank"), Counted(nodes, "node")));
    }
    devices_per_node = ranks / nodes;
  }
  if (int64_t{devices_per_node} * nodes < ranks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s cannot have %s: a node has %s", Counted(nodes, "node"),
                        Counted(ranks, "rank"), Counted(devices_per_node, "device")));
  }
  Topology topology;
  for (Rank rank = 0; rank < ranks; ++rank)
    topology.node_of_rank.push_back(rank / devices_per_node);
  return topology;
}

}  // namespace agmm
