// Memory that clients may still have mapped after their leases have ended. Each hold is a lease
// that only the release of the memory ends. Touched on the loop only.
#pragma once

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>

#include "agmm/v1/peer.pb.h"
#include "daemon/sequencer/entries.h"
#include "daemon/sequencer/lease_table.h"
#include "daemon/sequencer/members.h"

namespace agmm {

class Holds {
 public:
  Holds(const Members* members, Entries* entries, LeaseTable* leases)
      : members_(members), entries_(entries), leases_(leases) {}

  void OnHeld(int node, const v1::MemoryHeld& memory) {
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
  // Returns the entry whose hold has ended, or null.
  Entry* OnReleased(int node, const v1::MemoryReleased& released) {
    const auto hold = holds_.extract({node, released.hold_id()});
    const Lease* lease = hold.empty() ? nullptr : leases_->Find(hold.mapped().lease);
    if (lease == nullptr) return nullptr;
    Entry* entry = entries_->Find(lease->tensor);
    leases_->Erase(lease);
    --entry->holds;
    return entry;
  }
  // Called when the generation has ended; the nodes report their holds again.
  void Clear() {
    holds_.clear();
    for (auto& [id, entry] : entries_->all()) entry.holds = 0;
  }
  // Takes the holds that were reported before the world was complete.
  void OnReady() {
    for (auto& [key, hold] : holds_) Take(&hold);
  }

 private:
  struct Hold {
    v1::MemoryHeld memory;
    uint64_t lease = 0;  // 0: not taken yet
  };
  // Takes a lease on the tensor at the place, or on an entry made for it.
  void Take(Hold* hold) {
    const v1::MemoryHeld& memory = hold->memory;
    Entry* entry = entries_->FindHeld(memory);
    if (entry == nullptr) {
      return spdlog::error(
          "ignored a report of held memory: rank {} offset {} is already allocated to another "
          "tensor",
          memory.ranks(0), memory.offset_bytes());
    }
    Lease lease;
    lease.tensor = entry->tensor.tensor_id();
    lease.kind = memory.writable() ? LeaseKind::kWrite : LeaseKind::kRead;
    lease.granted = lease.held = true;
    hold->lease = leases_->Add(std::move(lease))->id;
    ++entry->holds;
  }

  const Members* const members_;
  Entries* const entries_;
  LeaseTable* const leases_;
  std::map<std::pair<int, uint64_t>, Hold> holds_;  // by node and the node's id for it
};

}  // namespace agmm
