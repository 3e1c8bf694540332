// Schedules and problems as text for people, diffs and golden files: Parse(Print(s)) == s.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// One line a step. Complete: nothing of the schedule is left out.
std::string Print(const Problem& problem, const Schedule& schedule);

// The reverse. Errors: INVALID_ARGUMENT with line and column.
absl::StatusOr<Schedule> Parse(const Problem& problem, absl::string_view text);

// One short sentence for one step, for errors: "rows 2048:4096 of A from rank 4".
std::string Describe(const Problem& problem, const Step& step);

// Of the printed form and the problem: what daemons compare before they run.
uint64_t PlanHash(const Problem& problem, const Schedule& schedule);

}  // namespace agmm
