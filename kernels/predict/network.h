// The resources of a platform, and those on the path of a message: the rates of its links and
// ports, and of the cores and memories of its devices.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "kernels/predict/platform.h"

namespace agmm {

// A resource with a limited rate, shared by the activities that use it.
using Resource = int;

// The use of a resource by an activity: the time in ns that it would take on a resource without
// other activities.
struct Usage {
  Resource resource = 0;
  double ns = 0;
};
using Usages = absl::InlinedVector<Usage, 6>;

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
  // Keeps a reference to `platform`.
  explicit Network(const Platform& platform);

  // The path between two different ranks; stays valid.
  const Path& Between(Rank from, Rank to);
  // The cores and the memory of a rank's device.
  Resource Cores(Rank rank) const { return 2 * rank; }
  Resource Memory(Rank rank) const { return 2 * rank + 1; }
  int resource_count() const { return static_cast<int>(names_.size()); }
  // "node 0's port, out", "link 3 -> 4", "rank 2's cores"; ranks are the mesh's.
  const std::string& NameOf(Resource resource) const { return names_[resource]; }
  // Returns how many of `bytes` on a hop pass at once, because they are within what is left of the
  // burst of an epoch. Earlier calls take it from later ones, whenever their bytes pass.
  double TakeBurst(const Path::Hop& hop, double bytes);
  // The time that bytes which passed at once would have taken on a resource.
  double BurstNs(Resource resource) const { return burst_ns_[resource]; }
  // Returns true for a link or a port, false for cores and memory.
  bool IsLink(Resource resource) const { return resource >= 2 * platform_.topology.rank_count(); }

 private:
  // Two ends of a path, and what they are: "node".
  struct Ends {
    int from = 0, to = 0;
    const char* kind = "";
  };

  // `burst_bytes`: of a new one.
  Resource LinkNamed(std::string name, double burst_bytes);
  // Adds one direction of a link or port, and both directions together if they share a limit.
  void AddDuplex(const std::string& forward, const std::string& both, const LinkRates& rates,
                 Path* path);
  void AddLinks(const Links& links, const Ends& ends, Path* path);
  void AddTorus(Rank from, Rank to, Path* path);

  const Platform& platform_;
  std::vector<std::string> names_;                   // by resource
  std::vector<double> burst_left_bytes_, burst_ns_;  // by resource
  using Paths = absl::flat_hash_map<std::pair<int, int>, std::unique_ptr<Path>>;
  Paths paths_;       // by ranks
  Paths node_paths_;  // by nodes: the ranks of two nodes share a path
  absl::flat_hash_map<std::string, Resource> links_;  // by name
  // The exceptions of the platform's nodes, by their nodes.
  absl::flat_hash_map<std::pair<int, int>, const PairRates*> pairs_;
};

}  // namespace agmm
