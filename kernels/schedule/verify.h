// Proves that a schedule is correct in every interleaving, if epochs follow each other without a
// barrier. Each rank still orders its own epochs, apart from its relay lanes.
#pragma once

#include "absl/status/status.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// The most lanes of a rank in a plan that a device runs.
inline constexpr int kMaxLanes = 64;

// OK when all of this holds for epochs e and e + 1 in a row, with the environment between the
// epochs of each rank (it writes the rank's A and B, reads its C and then overwrites it):
//   - every index is in range, every place inside its buffer and aligned, blocks and places fit
//   together;
//   - every slot has exactly one producer, and is awaited only at its own rank;
//   - no deadlock: waits, lanes and launches have no cycle;
//   - any two accesses to overlapping bytes, one of them a write, are ordered by happens-before;
//   - every read finds the block it names, of its own epoch;
//   - every element of C that a rank holds ends with each term of its sum counted once and finished
//   once;
//   - a place of another rank is read only where `topology` says that it can be loaded.
// Errors: INVALID_ARGUMENT or FAILED_PRECONDITION naming rank, lane, step and what it clashes with.
// `max_lanes`: of a rank. Tests also prove schedules that no device runs.
absl::Status Verify(const Problem& problem, const Topology& topology, const Schedule& schedule,
                    int max_lanes = kMaxLanes);

// The part of Verify that checks the steps of `rank` one by one, for an executor that will run
// them. Errors: INVALID_ARGUMENT naming rank, lane and step.
absl::Status VerifySteps(const Problem& problem, const Topology& topology, const Schedule& schedule,
                         Rank rank, int max_lanes = kMaxLanes);

}  // namespace agmm
