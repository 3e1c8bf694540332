// The blocks that transfers bring to a rank.
//
// A schedule leaves out a wait for a block if another wait implies it by way of a lane's order. A
// kernel finishes sending its blocks in any order. So a kernel waits for each block that another
// one sends, also if the schedule has no wait for it.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "kernels/schedule/schedule.h"

namespace agmm {

struct Receipt {
  Rank from = 0;
  int step = 0;  // of `from`: a transfer
  int slot = 0;  // of the receiver
  Block block;
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
      const auto receipts = receipts_.find({block.operand, place.buffer});
      if (receipts == receipts_.end()) return;
      for (const Receipt& receipt : receipts->second)
        if (!Intersect(receipt.block, block).empty()) visit(receipt);
    });
  }

 private:
  const Rank rank_;
  std::map<std::pair<Operand, Buffer>, std::vector<Receipt>> receipts_;
};

}  // namespace agmm
