// The order in which CUDA devices run a plan, as a schedule that Verify can prove.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_program.h"
#include "kernels/schedule/problem.h"
#include "kernels/schedule/schedule.h"
#include "kernels/schedule/topology.h"

namespace agmm {

// Lowers a plan for each of its ranks, on Hopper GPUs. Each rank has one of its own.
absl::StatusOr<std::vector<CudaProgram>> LowerForAllRanks(const Problem& problem,
                                                          const Topology& topology,
                                                          const Schedule& schedule);

// Rewrites a schedule as its launches run it. `programs`: by rank.
//
// A proof of the schedule relies on the order of each lane, but a kernel that computes several
// multiplies of a lane (kernels/cuda/launch_units.h) does not keep it: its CTAs compute several
// tile passes at a time, and its sends end in any order. The result has only the order that the
// launches keep:
//   - The kernel begins with a join on its lane, which waits for the events of the unit.
//   - Each tile pass, and each transfer that the kernel sends, then has a lane of its own. A
//     multiply waits for the slots of its piece and of all earlier ones, in place of the waits in
//     the schedule, because a CTA waits for them in order before it loads the piece. A send waits
//     for the same slots, because it sends what its carrier has loaded.
//   - The kernel ends with a join on its lane, behind all of these. It raises the slots of the
//     multiplies. A send raises the slot of its arrival alone.
//   - Every other unit is its step, with the waits of the unit. A transfer that is copied has no
//     carrier.
//
// A kernel may also have a single CTA, which takes the passes in order. That adds no cycle of
// waits, because the proof of the schedule counts the same order.
Schedule LaunchedOrder(const Schedule& schedule, const std::vector<CudaProgram>& programs);

// Submits the units of an epoch as CudaRun does, one lane after the other. A slot counts as raised
// once its step is submitted, or from the beginning if a kernel sends the chunk. Returns, for each
// lane whose units are not all submitted in the end, the name of the first one that is left.
std::vector<std::string> FindStuckUnits(const Schedule& schedule,
                                        const std::vector<CudaProgram>& programs);

}  // namespace agmm
