#include "daemon/sequencer/holds.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>

namespace agmm {

void Holds::OnHeld(int node, const v1::MemoryHeld& memory) {
  const auto own = [&](int rank) {
    return rank >= 0 && rank < static_cast<int>(members_->ranks().size()) &&
           members_->ranks()[rank].node == node;
  };
  const auto begin = memory.ranks().begin(), end = memory.ranks().end();
  const bool sound = begin != end && std::all_of(begin, end, own) &&
                     std::adjacent_find(begin, end, std::greater_equal<>()) == end;
  if (!sound) return;
  const auto [it, is_new] = holds_.try_emplace({node, memory.hold_id()}, Hold{memory});
  // Memory is not allocated before the world is complete; OnReady then takes all holds.
  if (is_new && entries_->IsOpen()) Take(&it->second);
}

void Holds::Take(Hold* hold) {
  const v1::MemoryHeld& memory = hold->memory;
  Entry* entry = entries_->FindHeld(memory);
  if (entry == nullptr) {
    return spdlog::error(
        "ignored a report of held memory: rank {} offset {} is already allocated to another tensor",
        memory.ranks(0), memory.offset_bytes());
  }
  Lease lease;
  lease.tensor = entry->tensor.tensor_id();
  lease.kind = memory.writable() ? LeaseKind::kWrite : LeaseKind::kRead;
  lease.granted = lease.held = true;
  hold->lease = leases_->Add(std::move(lease))->id;
  ++entry->holds;
}

Entry* Holds::OnReleased(int node, const v1::MemoryReleased& released) {
  const auto hold = holds_.extract({node, released.hold_id()});
  const Lease* lease = hold.empty() ? nullptr : leases_->Find(hold.mapped().lease);
  if (lease == nullptr) return nullptr;
  Entry* entry = entries_->Find(lease->tensor);
  leases_->Erase(lease);
  --entry->holds;
  return entry;
}

void Holds::Clear() {
  holds_.clear();
  for (auto& [id, entry] : entries_->all()) entry.holds = 0;
}

void Holds::OnReady() {
  for (auto& [key, hold] : holds_) Take(&hold);
}

}  // namespace agmm
