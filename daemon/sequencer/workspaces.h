// Workspaces: memory at the same offset on a set of ranks, each lent to one plan at a time. Touched
// on the loop only.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/observe/metrics.h"
#include "daemon/sequencer/placement.h"

namespace agmm {

class WorkspacePool {
 public:
  WorkspacePool(Placement* placement, Metrics* metrics);

  struct Loan {
    uint64_t id = 0;  // 0: none
    int64_t offset_bytes = 0;
  };
  // Lends `bytes` (> 0) at the same offset on all of `ranks`: workspace `last` if it is idle and
  // large enough, else the smallest such workspace of these ranks, else a new one that replaces
  // their idle ones, which are all too small. So a set of ranks never keeps more workspaces than it
  // used at once. Errors: RESOURCE_EXHAUSTED with HEAP_FULL, without an effect.
  absl::StatusOr<Loan> Take(const std::vector<int>& ranks, int64_t bytes, uint64_t last);
  // Requires that no step reads or writes it: all nodes have reported the end of its launches. That
  // is enough, also after a failure, and needs no new generation:
  // - Within a node only steps of a launch write it, and a launch is reported when none of the
  //   node's ranks has a step or a send left (Runner).
  // - A message from another node is written only to the place that the receiver's own launch names
  //   (Receiver::Accept). An epoch that succeeded has awaited every transfer into its rank. An
  //   epoch that failed is reported when no transfer into the node is under way, and drops later
  //   ones.
  // - Still later messages belong to an epoch without a launch here, and are dropped.
  // - A peer that is lost during a transfer ends the generation, and with it every workspace.
  void Return(uint64_t id);
  // Returns OK if Take would succeed once no workspace is lent; else its error.
  absl::Status CheckRoom(const std::vector<int>& ranks, int64_t bytes) const;
  // Frees as few idle workspaces as necessary to make room for `bytes` on `ranks`, least recently
  // used first. Returns false and changes nothing if freeing all of them is not enough.
  bool Reclaim(const std::vector<int>& ranks, int64_t bytes);
  // Frees all workspaces, because the generation has ended.
  void Forget();

 private:
  struct Workspace {
    std::vector<int> ranks;
    int64_t offset = 0, bytes = 0;
    bool lent = false;
    uint64_t last_use = 0;
  };
  using Iterator = std::map<uint64_t, Workspace>::iterator;
  Iterator FindIdle(const std::vector<int>& ranks, int64_t bytes, uint64_t last);
  // Returns the idle workspaces on any of `ranks`, most recently used first.
  std::vector<Iterator> IdleOn(const std::vector<int>& ranks);
  void Free(Iterator workspace);

  Placement* const placement_;
  Metrics::Counter* const allocated_total_;
  std::map<uint64_t, Workspace> workspaces_;
  uint64_t next_ = 1, next_use_ = 1;
};

}  // namespace agmm
