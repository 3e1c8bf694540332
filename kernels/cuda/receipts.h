// The blocks that transfers bring to a rank.
//
// A schedule leaves out a wait for a block if another wait implies it, by way of a lane's order.
// Kernels do not keep all of that order: their CTAs compute several multiplies of a lane at a time,
// and finish sending their blocks in any order. So a kernel waits for each block itself.
#pragma once

#include <set>
#include <vector>

#include "kernels/schedule/schedule.h"

namespace agmm {

struct Receipt {
  Rank from = 0;
  int step = 0;  // of `from`: a transfer
  int slot = 0;  // of the receiver
  Block block;
  Buffer buffer = kWorkspace;
};

class Receipts {
 public:
  // Finds the blocks that other ranks bring to one rank.
  Receipts(const Schedule& schedule, Rank rank);

  // Calls visit(receipt) for each block that the step reads a part of, in the memory of the rank.
  template <typename Visit>
  void ForEachRead(const Step& step, const Visit& visit) const {
    ForEachPlace(step.op, [&](const Block& block, const Place& place, Use use) {
      if (use != Use::kRead || place.rank != rank_) return;
      for (const Receipt& receipt : receipts_) {
        if (receipt.block.operand == block.operand && receipt.buffer == place.buffer &&
            !Intersect(receipt.block, block).empty()) {
          visit(receipt);
        }
      }
    });
  }

  // Returns true if a transfer to the rank raises this slot.
  bool Has(int slot) const { return slots_.contains(slot); }

 private:
  const Rank rank_;
  std::vector<Receipt> receipts_;
  std::set<int> slots_;
};

}  // namespace agmm
