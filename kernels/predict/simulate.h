// A discrete-event simulation of a schedule: lanes, waits, credits and shared links, over two
// epochs in a row, of which the second is timed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/predict/platform.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// A step in the second epoch. Times are ns since the first rank began that epoch; a step of a relay
// lane may begin before.
struct StepTimes {
  int64_t ready_ns = 0;    // the step before it in its lane has ended
  int64_t start_ns = 0;    // all of its waits hold
  int64_t end_ns = 0;      // as in Transfer: what it reads has been read
  int64_t arrived_ns = 0;  // the last of its blocks has arrived at another rank; else end_ns
};

struct ResourceUse {
  std::string name;     // "node 0's port, out"
  int64_t busy_ns = 0;  // the work of one epoch, as if alone
  bool is_link = false;
};

struct RankUse {
  int64_t begin_ns = 0, end_ns = 0;  // of the second epoch
  int64_t multiply_ns = 0;           // time in which one of its multiplies runs
};

// A part of the longest chain of steps, which makes up the epoch of the slowest rank without a gap:
// a step that ran, or the wait for one. Times are ns since that rank's epoch began. The chain is
// shorter than Simulation::time_ns if that is the work of the busiest resource.
struct ChainPart {
  Rank rank = 0;
  int step = 0;  // kEnvironment if the rank had not begun its epoch
  int64_t begin_ns = 0, end_ns = 0;
  bool waits = false;  // the next part is of another rank, which waits for this step
  std::string text;    // "rank 3 waits for rows 2048:4096 of A"
};

struct Simulation {
  int64_t time_ns = 0;                        // T: of the second epoch on its slowest rank
  std::vector<std::vector<StepTimes>> steps;  // by rank
  std::vector<RankUse> ranks;
  std::vector<ResourceUse> resources;  // the ones with work, busiest first
  std::vector<ChainPart> chain;        // in the order of time
};

// `schedule` verifies. Errors: those of CheckPlaces and Order::Build.
absl::StatusOr<Simulation> Simulate(const Problem& problem, const Platform& platform,
                                    const Schedule& schedule);

}  // namespace agmm
