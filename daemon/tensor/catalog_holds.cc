// Memory that clients may still have mapped after their access to it is over: a lease that no other
// ends.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "daemon/tensor/catalog_impl.h"
#include "kernels/base/random.h"

namespace agmm::catalog {

void CatalogImpl::OnHeld(int node, const v1::MemoryHeld& memory) {
  const auto own = [&](int rank) {
    return rank >= 0 && rank < static_cast<int>(members_->ranks().size()) &&
           members_->ranks()[rank].node == node;
  };
  const auto begin = memory.ranks().begin(), end = memory.ranks().end();
  const bool sound = begin != end && std::all_of(begin, end, own) &&
                     std::adjacent_find(begin, end, std::greater_equal<>()) == end;
  if (!sound) return;
  const auto [it, is_new] = holds_.try_emplace({node, memory.hold_id()}, Hold{memory});
  // Before its world is complete nobody is given anything; OnReady takes them all.
  if (is_new && Open()) TakeHold(&it->second);
}

Entry* CatalogImpl::HeldEntry(const v1::MemoryHeld& memory) {
  const std::vector<int> ranks(memory.ranks().begin(), memory.ranks().end());
  for (auto& [id, entry] : entries_) {
    const auto has = [&entry = entry](int rank) {
      return std::find(entry.ranks.begin(), entry.ranks.end(), rank) != entry.ranks.end();
    };
    if (entry.tensor.offset_bytes() == memory.offset_bytes() &&
        entry.tensor.shard_bytes() == memory.bytes() &&
        std::all_of(ranks.begin(), ranks.end(), has)) {
      return &entry;
    }
  }
  if (!placement_->AllocateAt(ranks, memory.offset_bytes(), memory.bytes(), MemoryClass::kTensor))
    return nullptr;
  // The tensor has gone, or the sequencer that knew it. No node is told of this one.
  const uint64_t id = next_tensor_++;
  Entry& entry = entries_[id];
  entry.ranks = ranks;
  entry.link = Link::kGone;
  entry.tensor.set_tensor_id(id);
  entry.tensor.set_name(memory.tensor_name());
  entry.tensor.set_offset_bytes(memory.offset_bytes());
  entry.tensor.set_shard_bytes(memory.bytes());
  return &entry;
}

void CatalogImpl::TakeHold(Hold* hold) {
  Entry* entry = HeldEntry(hold->memory);
  if (entry == nullptr) {
    return spdlog::error(
        "what a node holds back at byte {} of rank {} is not there to be held; it is not kept",
        hold->memory.offset_bytes(), hold->memory.ranks(0));
  }
  Lease lease;
  lease.id = RandomId();
  lease.kind = hold->memory.writable() ? LeaseKind::kWrite : LeaseKind::kRead;
  lease.granted = lease.held = true;
  hold->tensor = entry->tensor.tensor_id();
  hold->lease = lease.id;
  // Before what waits, and beside the client's own lease where that has not ended.
  entry->leases.push_front(std::move(lease));
  if (entry->holds++ == 0) {
    placement_->Reclass(entry->ranks, entry->tensor.shard_bytes(), MemoryClass::kTensor,
                        MemoryClass::kHeld);
  }
}

void CatalogImpl::OnReleased(int node, const v1::MemoryReleased& released) {
  const auto it = holds_.find({node, released.hold_id()});
  if (it == holds_.end()) return;
  const Hold hold = std::move(it->second);
  holds_.erase(it);
  const auto found = entries_.find(hold.tensor);
  if (found == entries_.end()) return;
  Entry* entry = &found->second;
  const auto lease = LeaseOf(entry, hold.lease);
  if (lease == entry->leases.end()) return;
  if (entry->holds == 1) {
    ForgetHolds(entry);
  } else {
    --entry->holds;
  }
  Give(entry, lease);
}

void CatalogImpl::ForgetHolds(Entry* entry) {
  if (std::exchange(entry->holds, 0) == 0) return;
  placement_->Reclass(entry->ranks, entry->tensor.shard_bytes(), MemoryClass::kHeld,
                      MemoryClass::kTensor);
}

}  // namespace agmm::catalog
