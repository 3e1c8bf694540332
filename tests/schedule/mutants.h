// Schedules with one thing changed.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "kernels/schedule/schedule.h"

namespace agmm::test {

struct Mutant {
  std::string name;
  Schedule schedule;
};

// One wait, one signal or one step less.
std::vector<Mutant> WithOneLess(const Schedule& schedule);
// One of these, drawn: of a step that is drawn first. Some rank has a step.
Mutant WithOneLess(const Schedule& schedule, std::mt19937_64& random);

// One wait of the other lag.
std::vector<Mutant> WithAnotherLag(const Schedule& schedule);

// One random change of the kind that a planner's mistake would make: a wait for another slot, two
// steps swapped or on another lane, a workspace place shifted, one of those above. Places stay
// inside the workspace, slots keep one producer; all else may be broken.
Mutant Mistaken(const Schedule& schedule, std::mt19937_64& random);

}  // namespace agmm::test
