#include "daemon/job/workspaces.h"

#include "kernels/base/status.h"

namespace agmm {

WorkspacePool::WorkspacePool(Placement* placement, Metrics* metrics)
    : placement_(placement), allocated_total_(metrics->counter("workspaces_allocated_total")) {}

absl::StatusOr<WorkspacePool::Loan> WorkspacePool::Take(const std::vector<int>& ranks, int64_t bytes,
                                                        uint64_t last) {
  Iterator found = FindIdle(ranks, bytes, last);
  if (found == workspaces_.end()) {
    // Asked first: reclaiming for it may take idle ones out of the pool.
    AGMM_ASSIGN_OR_RETURN(const int64_t offset,
                          placement_->Allocate(ranks, bytes, MemoryClass::kWorkspace));
    allocated_total_->Add();
    found = workspaces_.emplace(next_++, Workspace{ranks, offset, bytes}).first;
  }
  found->second.lent = true;
  return Loan{found->first, found->second.offset};
}

WorkspacePool::Iterator WorkspacePool::FindIdle(const std::vector<int>& ranks, int64_t bytes,
                                                uint64_t last) {
  const auto serves = [&](const Workspace& workspace) {
    return !workspace.lent && workspace.bytes >= bytes && workspace.ranks == ranks;
  };
  if (const Iterator same = workspaces_.find(last);
      same != workspaces_.end() && serves(same->second)) {
    return same;
  }
  Iterator best = workspaces_.end();
  for (Iterator it = workspaces_.begin(); it != workspaces_.end(); ++it) {
    if (serves(it->second) && (best == workspaces_.end() || it->second.bytes < best->second.bytes))
      best = it;
  }
  return best;
}

void WorkspacePool::Return(uint64_t id) {
  const Iterator it = workspaces_.find(id);
  if (it == workspaces_.end()) return;
  it->second.lent = false;
  it->second.last_use = next_use_++;
}

bool WorkspacePool::Reclaim() {
  Iterator oldest = workspaces_.end();
  for (Iterator it = workspaces_.begin(); it != workspaces_.end(); ++it) {
    if (it->second.lent) continue;
    if (oldest == workspaces_.end() || it->second.last_use < oldest->second.last_use) oldest = it;
  }
  if (oldest == workspaces_.end()) return false;
  Free(oldest);
  return true;
}

void WorkspacePool::Forget() {
  while (!workspaces_.empty()) Free(workspaces_.begin());
}

void WorkspacePool::Free(Iterator workspace) {
  const Workspace& gone = workspace->second;
  // What is sent for this space from now on comes behind what was sent for it before, on every node's stream.
  placement_->Free(gone.ranks, gone.offset, gone.bytes, MemoryClass::kWorkspace);
  workspaces_.erase(workspace);
}

}  // namespace agmm
