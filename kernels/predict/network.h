// The resources of a platform, and those on the path of a message: the rates of its links and
// ports, and of the cores and memories of its devices.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "kernels/predict/platform.h"

namespace agmm {

// Something that works at a limited rate, which the activities that use it share.
using Resource = int;

// Work of an activity: the time in ns that it would take on a resource without other activities.
struct Work {
  Resource resource = 0;
  double ns = 0;
};
using Works = absl::InlinedVector<Work, 6>;

// The path of a message from one rank to another.
struct Path {
  struct Hop {
    Resource resource = 0;
    double bytes_per_ns = 0;
  };
  absl::InlinedVector<Hop, 6> hops;
  double latency_ns = 0;
  bool by_cores = false;    // a copy within a node, for which the machine has a cost of cores
  bool is_message = false;  // between nodes: the sender and the receiver have costs for it
};

class Network {
 public:
  explicit Network(const Platform& platform);

  // The path between two different ranks.
  const Path& Between(Rank from, Rank to);
  // The cores and the memory of a rank's device.
  Resource Cores(Rank rank) const { return 2 * rank; }
  Resource Memory(Rank rank) const { return 2 * rank + 1; }
  int resource_count() const { return static_cast<int>(names_.size()); }
  // "node 0's port, out", "link 3 -> 4", "rank 2's cores"; ranks are the mesh's.
  const std::string& NameOf(Resource resource) const { return names_[resource]; }
  // True for a link or a port, false for cores and memory.
  bool IsLink(Resource resource) const {
    return resource >= 2 * static_cast<int>(platform_.topology.node_of_rank.size());
  }

 private:
  const Platform& platform_;
  std::vector<std::string> names_;
  absl::flat_hash_map<std::pair<Rank, Rank>, Path> paths_;
  absl::flat_hash_map<std::string, Resource> links_;
};

}  // namespace agmm
