// The world from the view of the catalog and the scheduler. Touched on the loop only.
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
  std::string device = {};     // "cpu: 2 threads, oneDNN 2.6.3, avx512_bf16"
  std::string kind = {};       // "cpu"; empty: of a missing node
  int island = 0;              // of the node
  std::string processor = {};  // of the node; empty if not known
};

// One ordered stream to each member. An interface, because tests use a fake.
class Members {
 public:
  virtual ~Members() = default;
  // Identifies this process; the ids that it assigns are valid only within it.
  virtual const std::string& incarnation() const = 0;
  virtual uint64_t generation() const = 0;
  // OK if commands can be sent: every present node is ready in this generation, and the nodes of
  // `ranks`, which must be ranks of the world, are present. Else UNAVAILABLE with WORLD_INCOMPLETE,
  // which names the missing nodes.
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
  // nothing may be sent for the old generation. Memory of the remaining nodes may be used again
  // after OnReady.
  virtual void OnGenerationEnded(const std::vector<int>& lost_nodes,
                                 const absl::Status& reason) = 0;
  // Every present node has joined this generation, and has drained. Nodes may be missing; the
  // tensors and ranks of the others can be used without them.
  virtual void OnReady() = 0;
  // A report of the current generation from `node`.
  virtual void OnReport(int node, const v1::Report& report) = 0;
};

}  // namespace agmm
