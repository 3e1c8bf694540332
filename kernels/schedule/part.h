// The part of a schedule that a node needs once all nodes have agreed on the whole.
#pragma once

#include <vector>

#include "kernels/schedule/schedule.h"

namespace agmm {

// By rank: the names of the steps in the schedule, ascending; empty for a rank with all of its
// steps.
using StepNames = std::vector<std::vector<int>>;

struct SchedulePart {
  Schedule schedule;
  StepNames names;
};

// Returns all steps of the ranks that are `mine` (by rank), and the steps of other ranks that
// signal one of them. A step that writes at a rank signals it, so these include all steps that
// write at one of them.
SchedulePart PartOf(Schedule whole, const std::vector<bool>& mine);

// Returns the step of this name, or null if the part does not have it. `names` is null for a whole
// schedule.
const Step* FindStep(const Schedule& schedule, const StepNames* names, Rank rank, int name);

}  // namespace agmm
