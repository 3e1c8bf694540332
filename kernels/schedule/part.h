// The part of a schedule that a node needs once all nodes have agreed on the whole.
#pragma once

#include <vector>

#include "kernels/schedule/schedule.h"

namespace agmm {

// By rank: the names of the steps that stand in the schedule, ascending; empty for a rank all of
// whose steps do.
using StepNames = std::vector<std::vector<int>>;

struct SchedulePart {
  Schedule schedule;
  StepNames names;
};

// All steps of the ranks that are `mine`, and those of other ranks that signal one of them: what
// arrives here. A step that writes at a rank signals it, so these are all that write here. `mine`:
// by rank.
SchedulePart PartOf(Schedule whole, const std::vector<bool>& mine);

// The step of this name, or null if the part has none. `names` may be null: for a whole schedule.
const Step* FindStep(const Schedule& schedule, const StepNames* names, Rank rank, int name);

}  // namespace agmm
