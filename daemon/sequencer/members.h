// The world as the catalog and the scheduler see it. Touched on the loop only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agmm/v1/peer.pb.h"

namespace agmm {

struct WorldRank {
  int node = 0;
  int64_t heap_bytes = 0;
  std::string device = {};  // "cpu: 2 threads, oneDNN 2.6.3, avx512_bf16"
  std::string kind = {};    // "cpu"; empty: of a missing node
  int island = 0;           // of the node
};

// One ordered stream to each member. An interface, because tests put a fake here.
class Members {
 public:
  virtual ~Members() = default;
  // Identifies this process; the ids that it hands out are valid within it only.
  virtual const std::string& incarnation() const = 0;
  virtual uint64_t generation() const = 0;
  // OK when commands can be sent: every node that is there is ready in this generation, and the
  // nodes of `ranks`, which the world has, are there. Else UNAVAILABLE with WORLD_INCOMPLETE,
  // naming the nodes that are missing for this.
  virtual absl::Status Ready(const std::vector<int>& ranks) const = 0;
  virtual int node_count() const = 0;
  virtual std::string node_name(int node) const = 0;
  // By world rank. Ranks of missing nodes have no heap.
  virtual const std::vector<WorldRank>& ranks() const = 0;
  // Queues `command` on the stream to `node`; drops it for a lost node, whose loss is about to
  // reach WorldListener.
  virtual void Send(int node, v1::Command command) = 0;
  // Drops a node that is connected but does not follow its commands: the generation ends with
  // `why`, and the node may join again.
  virtual void Lose(int node, const std::string& why) = 0;
};

// Events of the world for the catalog and the scheduler. Called on the loop.
class WorldListener {
 public:
  virtual ~WorldListener() = default;
  // A generation ended because of `reason` (ABORTED, PEER_LOST, naming the peer). All jobs and
  // leases in flight are void, and tensors on `lost_nodes` are lost. Members drain on their own;
  // nothing may be sent for the old generation. Memory of the nodes that are left may be used again
  // after OnReady.
  virtual void OnGenerationEnded(const std::vector<int>& lost_nodes,
                                 const absl::Status& reason) = 0;
  // Every node that is there has joined this generation, and has drained. Nodes may be missing;
  // the tensors and ranks of the others can be used without them.
  virtual void OnReady() = 0;
  // A report of the current generation from `node`.
  virtual void OnReport(int node, const v1::Report& report) = 0;
};

}  // namespace agmm
