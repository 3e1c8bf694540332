// Schedules as text, for people, diffs and golden files. The tests parse it back.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/schedule/schedule.h"

namespace agmm {

inline constexpr char kWorkspaceText[] = "workspace";

// The tensor's name; "workspace" for kWorkspace; "#3" where names do not tell operands apart.
std::string OperandText(const Problem& problem, int operand);

// One line a step. Complete: nothing of the schedule is left out.
std::string Print(const Problem& problem, const Schedule& schedule);

// One short sentence for one step, for errors: "rows 2048:4096 of A from rank 4".
std::string Describe(const Problem& problem, const Step& step);

}  // namespace agmm
