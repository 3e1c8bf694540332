// A value for each slot of a schedule.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// Planners number the slots of a rank without large gaps, so an array holds the values. Slots with
// a number far above the count of their rank's slots are in a map. Memory is thus linear in the
// signals of any schedule.
template <typename Value>
class SlotTable {
 public:
  SlotTable() = default;
  // Makes room for the slots that `schedule` signals.
  explicit SlotTable(const Schedule& schedule) {
    std::vector<int64_t> room(schedule.ranks.size(), 0), highest(schedule.ranks.size(), -1);
    ForEachSignal(schedule, [&](const Slot& slot) {
      room[slot.rank] += kRoomPerSignal;
      highest[slot.rank] = std::max<int64_t>(highest[slot.rank], slot.index);
    });
    begin_.assign(schedule.ranks.size() + 1, 0);
    for (size_t rank = 0; rank < room.size(); ++rank)
      begin_[rank + 1] = begin_[rank] + std::min(room[rank], highest[rank] + 1);
    values_.resize(begin_.back());
  }

  // Returns the value of a slot, Value() at first.
  Value& operator[](const Slot& slot) {
    return IsInArray(slot) ? values_[begin_[slot.rank] + slot.index]
                           : others_[{slot.rank, slot.index}];
  }
  Value Get(const Slot& slot) const {
    if (IsInArray(slot)) return values_[begin_[slot.rank] + slot.index];
    const auto at = others_.find({slot.rank, slot.index});
    return at == others_.end() ? Value() : at->second;
  }

 private:
  // Close drops signals, and numbers the other slots only afterwards.
  static constexpr int kRoomPerSignal = 8;

  template <typename Use>
  static void ForEachSignal(const Schedule& schedule, const Use& use) {
    for (const std::vector<Step>& steps : schedule.ranks) {
      for (const Step& step : steps) {
        for (const Slot& slot : step.signals)
          if (slot.rank >= 0 && slot.rank < static_cast<Rank>(schedule.ranks.size())) use(slot);
      }
    }
  }
  bool IsInArray(const Slot& slot) const {
    return slot.rank >= 0 && slot.rank + 1 < static_cast<Rank>(begin_.size()) && slot.index >= 0 &&
           slot.index < begin_[slot.rank + 1] - begin_[slot.rank];
  }

  std::vector<int64_t> begin_;  // by rank; one more at the end
  std::vector<Value> values_;   // by rank and index
  absl::flat_hash_map<std::pair<Rank, int>, Value> others_;
};

}  // namespace agmm
