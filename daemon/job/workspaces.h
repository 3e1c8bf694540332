// Workspaces: pieces of the heaps of a set of ranks, each lent to one plan at a time. On the loop only.
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
  // `bytes` (> 0) at one offset on all of `ranks`: workspace `last` if it is idle and large enough, else the
  // smallest idle one of these ranks that is, else a new one. Errors: RESOURCE_EXHAUSTED with HEAP_FULL.
  absl::StatusOr<Loan> Take(const std::vector<int>& ranks, int64_t bytes, uint64_t last);
  // Only when nothing reads or writes it any more: all ranks have reported the end of all that was launched
  // on it. (Then no message for it is under way either: an epoch that ended well has awaited every transfer
  // into it, and for one that failed the receivers drop what comes behind their report.)
  void Return(uint64_t id);
  // Gives back the memory of the one that was idle longest. False when all are lent.
  bool Reclaim();
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
  void Free(Iterator workspace);

  Placement* const placement_;
  Metrics::Counter* const allocated_total_;
  std::map<uint64_t, Workspace> workspaces_;
  uint64_t next_ = 1, next_use_ = 1;
};

}  // namespace agmm
