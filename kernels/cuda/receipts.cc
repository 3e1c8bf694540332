#include "kernels/cuda/receipts.h"

#include <variant>

namespace agmm {

Receipts::Receipts(const Schedule& schedule, Rank rank) : rank_(rank) {
  for (Rank from = 0; from < static_cast<Rank>(schedule.ranks.size()); ++from) {
    const std::vector<Step>& steps = schedule.ranks[from];
    for (size_t i = 0; i < steps.size(); ++i) {
      const auto* const transfer = std::get_if<Transfer>(&steps[i].op);
      for (size_t to = 0; transfer != nullptr && to < transfer->to.size(); ++to) {
        const Place& place = transfer->to[to];
        if (from == rank || place.rank != rank) continue;
        receipts_[{transfer->block.operand, place.buffer}].push_back(
            {from, static_cast<int>(i), steps[i].signals[to].index, transfer->block});
      }
    }
  }
}

}  // namespace agmm
