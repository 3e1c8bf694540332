// Schedules as text, for people, diffs and golden files. The tests parse it back.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/schedule/schedule.h"

namespace agmm {

inline constexpr char kWorkspaceText[] = "workspace";

// Returns the tensor's name; "workspace" for kWorkspace; "#3" if names do not distinguish operands.
std::string OperandText(const Problem& problem, int operand);

// Returns one line per step, with the complete schedule.
std::string Print(const Problem& problem, const Schedule& schedule);

// Returns a short description of one step, for errors: "rows 2048:4096 of A from rank 4".
std::string Describe(const Problem& problem, const Step& step);

}  // namespace agmm
