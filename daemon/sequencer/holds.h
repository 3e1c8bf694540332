// Memory that clients may still have mapped after their leases have ended. Each hold is a lease
// that only the release of the memory ends. Touched on the loop only.
#pragma once

#include <cstdint>
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

  void OnHeld(int node, const v1::MemoryHeld& memory);
  // Returns the entry whose hold has ended, or null.
  Entry* OnReleased(int node, const v1::MemoryReleased& released);
  // Called when the generation has ended; the nodes report their holds again.
  void Clear();
  // Takes the holds that were reported before the world was complete.
  void OnReady();

 private:
  struct Hold {
    v1::MemoryHeld memory;
    uint64_t lease = 0;  // 0: not taken yet
  };
  // Takes a lease on the tensor at the place, or on an entry made for it.
  void Take(Hold* hold);

  const Members* const members_;
  Entries* const entries_;
  LeaseTable* const leases_;
  std::map<std::pair<int, uint64_t>, Hold> holds_;  // by node and the node's id for it
};

}  // namespace agmm
