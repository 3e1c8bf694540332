// The state of one rank in a plan's epoch: for errors, for progress reports, and to find the rank
// that delays the others.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/schedule/schedule.h"

namespace agmm {

// Start (when its waits held) and end of a step, in CLOCK_MONOTONIC nanoseconds; 0: never.
struct StepTime {
  int64_t start_ns = 0, end_ns = 0;
};

// A lane with steps left.
struct LaneState {
  int step = 0;               // the first step that has not ended
  int64_t since_ns = 0;       // start of its work or its wait; if `ready`: it was not ready before
  std::vector<Wait> missing;  // the missing waits; empty if it is at work or ready
  bool ready = false;         // its waits are over, and no worker has begun it
};

struct RankState {
  uint64_t epoch = 0;               // in progress; 0: none
  bool behind = false;              // no epoch runs, because the device runs other plans first
  int64_t start_ns = 0, at_ns = 0;  // the epoch's begin, and the time of this state
  int in_flight = 0;                // messages to other nodes whose bytes may not have left
  std::vector<LaneState> lanes;
  std::vector<StepTime> steps;  // by step of this rank, as far as known
};

}  // namespace agmm
