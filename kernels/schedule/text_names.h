// What printing and parsing a schedule share: how operands and the workspace are written.
#pragma once

#include <string>

#include "kernels/schedule/schedule.h"

namespace agmm {

inline constexpr char kWorkspaceText[] = "workspace";

// The tensor's name; "workspace" for kWorkspace; "#3" where a name does not tell operands apart.
std::string OperandText(const Problem& problem, int operand);

}  // namespace agmm
