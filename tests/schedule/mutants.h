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

// Returns all mutants with one wait, signal or step less.
std::vector<Mutant> WithOneLess(const Schedule& schedule);
// Returns one of these mutants: draws a step, and then a part of it. Requires a rank with a step.
Mutant WithOneLess(const Schedule& schedule, std::mt19937_64& random);

// Returns all mutants in which one wait has the other lag.
std::vector<Mutant> WithAnotherLag(const Schedule& schedule);

// Makes one random change like a planner's bug: a wait for another slot, two steps swapped or on
// another lane, a shifted workspace place, or one of the changes above. Places stay inside the
// workspace and slots keep one producer; everything else may be broken.
Mutant Mistaken(const Schedule& schedule, std::mt19937_64& random);

}  // namespace agmm::test
