// Workspaces: pieces of the heaps of a set of ranks, each lent to one plan at a time. On the loop
// only.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/observe/metrics.h"
#include "daemon/tensor/placement.h"

namespace agmm {

class WorkspacePool {
 public:
  WorkspacePool(Placement* placement, Metrics* metrics);

  struct Loan {
    uint64_t id = 0;  // 0: none
    int64_t offset_bytes = 0;
  };
  // `bytes` (> 0) at one offset on all of `ranks`: workspace `last` if it is idle and large enough,
  // else the smallest idle one of these ranks that is, else a new one in place of the idle ones of
  // these ranks, which are all too small. So no set of ranks keeps more of them than were lent at a
  // time. Errors: RESOURCE_EXHAUSTED with HEAP_FULL; nothing has been given up then.
  absl::StatusOr<Loan> Take(const std::vector<int>& ranks, int64_t bytes, uint64_t last);
  // Only when nothing reads or writes it any more: all nodes have reported the end of all that was
  // launched on it. That is enough, also after a failure, and needs no new generation:
  // - Within a node, whoever stores into it is a step of a launch, and a launch is reported when
  // none of the
  //   node's ranks has a step or a send left (Runner).
  // - Nothing from another node is written without the receiver's word: it says where to, from its
  // own launch
  //   (Receiver::Accept). An epoch that ended well has awaited every transfer into its rank. One
  //   that failed is reported when none is on its way into this node any more, and from its failure
  //   on they are dropped.
  // - What comes later still is of an epoch that has no launch here: dropped.
  // - A peer that is lost in mid-transfer ends the generation, and with it every workspace.
  void Return(uint64_t id);
  // OK if Take would find room once no workspace is lent; else its error as it would be then.
  absl::Status CheckRoom(const std::vector<int>& ranks, int64_t bytes) const;
  // Makes room for `bytes` on `ranks` out of idle ones: gives back those that it takes and no
  // others, of these the ones that were used last are kept. False, and nothing has happened, where
  // all of them would not do.
  bool Reclaim(const std::vector<int>& ranks, int64_t bytes);
  // The generation has ended: none is used any more, and all memory goes back.
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
  // Those that lie on one of `ranks`; the one that was used last is first.
  std::vector<Iterator> IdleOn(const std::vector<int>& ranks);
  void Free(Iterator workspace);

  Placement* const placement_;
  Metrics::Counter* const allocated_total_;
  std::map<uint64_t, Workspace> workspaces_;
  uint64_t next_ = 1, next_use_ = 1;
};

}  // namespace agmm
