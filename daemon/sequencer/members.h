// The sequencer's view of the world, as its catalog and scheduler see it. On the loop only.
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
};

// One ordered stream to each member. A seam: tests put a fake here.
class Members {
 public:
  virtual ~Members() = default;
  // Of this process: ids that it gives are no other's.
  virtual const std::string& incarnation() const = 0;
  virtual uint64_t generation() const = 0;
  // OK when every node has joined and is ready; else UNAVAILABLE with WORLD_INCOMPLETE, naming who
  // is missing.
  virtual absl::Status Complete() const = 0;
  virtual int node_count() const = 0;
  virtual std::string node_name(int node) const = 0;
  // By world rank. Those of missing nodes have no heap.
  virtual const std::vector<WorldRank>& ranks() const = 0;
  // Queues `command` on the stream to `node`; dropped when it is gone (its loss is on its way to
  // WorldListener).
  virtual void Send(int node, v1::Command command) = 0;
  // Gives up on a node whose stream lives but which does not do what it should, because of `why`:
  // the generation ends. It may join again.
  virtual void Lose(int node, const std::string& why) = 0;
};

// What the catalog and the scheduler hear of the world. On the loop.
class WorldListener {
 public:
  virtual ~WorldListener() = default;
  // A generation ended because of `reason` (ABORTED, PEER_LOST, naming the peer). Everything in
  // flight is void, and so is what lay on `lost_nodes`. Members drain on their own; nothing may be
  // sent for the old generation any more. Space may be used again once OnReady is called.
  virtual void OnGenerationEnded(const std::vector<int>& lost_nodes,
                                 const absl::Status& reason) = 0;
  // Every node has joined and drained.
  virtual void OnReady() = 0;
  // A report of the current generation from `node`.
  virtual void OnReport(int node, const v1::Report& report) = 0;
};

}  // namespace agmm
