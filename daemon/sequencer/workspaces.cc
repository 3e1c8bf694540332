#include "daemon/sequencer/workspaces.h"

#include <algorithm>

#include "kernels/base/status.h"

namespace agmm {
namespace {

template <typename Iterators>
std::vector<Placement::Piece> PiecesOf(const Iterators& workspaces) {
  std::vector<Placement::Piece> pieces;
  for (const auto& it : workspaces)
    pieces.push_back({it->second.ranks, it->second.offset, it->second.bytes});
  return pieces;
}

}  // namespace

WorkspacePool::WorkspacePool(Placement* placement, Metrics* metrics)
    : placement_(placement), allocated_total_(metrics->counter("workspaces_allocated_total")) {}

absl::StatusOr<WorkspacePool::Loan> WorkspacePool::Take(const std::vector<int>& ranks,
                                                        int64_t bytes, uint64_t last) {
  Iterator found = FindIdle(ranks, bytes, last);
  if (found == workspaces_.end()) {
    const std::vector<Iterator> idle = IdleOn(ranks);
    AGMM_RETURN_IF_ERROR(placement_->CheckRoom(ranks, bytes, PiecesOf(idle)));
    for (const Iterator it : idle)
      if (it->second.ranks == ranks) Free(it);
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

absl::Status WorkspacePool::CheckRoom(const std::vector<int>& ranks, int64_t bytes) const {
  std::vector<Placement::Piece> all;
  for (const auto& [id, workspace] : workspaces_) {
    if (workspace.bytes >= bytes && workspace.ranks == ranks) return absl::OkStatus();
    all.push_back({workspace.ranks, workspace.offset, workspace.bytes});
  }
  return placement_->CheckRoom(ranks, bytes, all);
}

std::vector<WorkspacePool::Iterator> WorkspacePool::IdleOn(const std::vector<int>& ranks) {
  std::vector<Iterator> idle;
  for (Iterator it = workspaces_.begin(); it != workspaces_.end(); ++it) {
    const std::vector<int>& theirs = it->second.ranks;
    if (!it->second.lent && std::find_first_of(theirs.begin(), theirs.end(), ranks.begin(),
                                               ranks.end()) != theirs.end())
      idle.push_back(it);
  }
  std::sort(idle.begin(), idle.end(),
            [](Iterator a, Iterator b) { return a->second.last_use > b->second.last_use; });
  return idle;
}

bool WorkspacePool::Reclaim(const std::vector<int>& ranks, int64_t bytes) {
  const auto suffice = [&](const std::vector<Iterator>& given) {
    return placement_->CheckRoom(ranks, bytes, PiecesOf(given)).ok();
  };
  std::vector<Iterator> given = IdleOn(ranks);
  if (given.empty() || !suffice(given)) return false;
  for (size_t i = 0; i < given.size();) {
    std::vector<Iterator> fewer = given;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    if (suffice(fewer)) {
      given = std::move(fewer);
    } else {
      ++i;
    }
  }
  for (const Iterator it : given) Free(it);
  return !given.empty();
}

void WorkspacePool::Forget() {
  while (!workspaces_.empty()) Free(workspaces_.begin());
}

void WorkspacePool::Free(Iterator workspace) {
  const Workspace& freed = workspace->second;
  // The memory can be reused at once, because each node's stream keeps the commands in order.
  placement_->Free(freed.ranks, freed.offset, freed.bytes, MemoryClass::kWorkspace);
  workspaces_.erase(workspace);
}

}  // namespace agmm
