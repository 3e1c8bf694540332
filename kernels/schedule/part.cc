#include "kernels/schedule/part.h"

#include <algorithm>
#include <utility>

namespace agmm {

SchedulePart PartOf(Schedule whole, const std::vector<bool>& mine) {
  SchedulePart part;
  part.names.resize(whole.ranks.size());
  for (size_t rank = 0; rank < whole.ranks.size(); ++rank) {
    if (mine[rank]) continue;
    std::vector<Step>& steps = whole.ranks[rank];
    std::vector<int>& names = part.names[rank];
    for (int name = 0; name < static_cast<int>(steps.size()); ++name) {
      const std::vector<Slot>& signals = steps[name].signals;
      if (std::any_of(signals.begin(), signals.end(), [&](Slot slot) { return mine[slot.rank]; }))
        names.push_back(name);
    }
    if (names.size() == steps.size()) {
      names.clear();
      continue;
    }
    // Moves them into a new vector, because the old one would keep its capacity.
    std::vector<Step> kept;
    kept.reserve(names.size());
    for (int name : names) kept.push_back(std::move(steps[name]));
    steps = std::move(kept);
  }
  part.schedule = std::move(whole);
  return part;
}

const Step* FindStep(const Schedule& schedule, const StepNames* names, Rank rank, int name) {
  const std::vector<Step>& steps = schedule.ranks[rank];
  size_t index = name;
  if (names != nullptr && !(*names)[rank].empty()) {
    const std::vector<int>& known = (*names)[rank];
    const auto it = std::lower_bound(known.begin(), known.end(), name);
    if (it == known.end() || *it != name) return nullptr;
    index = it - known.begin();
  }
  return name < 0 || index >= steps.size() ? nullptr : &steps[index];
}

}  // namespace agmm
