// A simulated epoch as a picture of letters: a line for each rank, a column for each span of time.
// Pure.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/predict/simulate.h"

namespace agmm {

// The most ranks of a timeline.
inline constexpr int kTimelineRanks = 16;

// Returns lines of at most `columns` columns, at least 60:
//
//   rank 0  MMMMMMMMMMMMMMMMMM-------MMMMMMMMMMM    84 %
//   rank 1  MMMMMMMMMMMMMMMM-----..MMMMMMMMMMMM.    83 %
//       us  |0         |100      |200      |300
//           M multiply  - transfer only  . wait
//
// A column has the letter of what took most of its time; equal shares go to the earlier letter of
// the legend. A transfer counts at its sender and at its receivers until its bytes have arrived.
// Time before and after a rank's own epoch is blank. Behind a line is the share of the rank's epoch
// in which it multiplies. Ranks beyond kTimelineRanks are left out, with a line that counts them. A
// simulation without time has no lines.
std::string TimelineText(const Problem& problem, const Schedule& schedule,
                         const Simulation& simulation, size_t columns);

}  // namespace agmm
