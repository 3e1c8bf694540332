// Legal schedules that no planner makes, for tests of executors and of Verify.
#pragma once

#include <random>

#include "kernels/schedule/schedule.h"

namespace agmm::test {

// Returns a schedule that Verify accepts, for a problem that gathers A along M: A[M_x, K] * B[K,
// N_x] -> C[M, N_x]. Draws the chunks of rows and of K, the routes of pieces, peer loads inside a
// node, copies inside a rank, sums on chip, in the workspace and by reductions, places and their
// reuse, lanes and orders, and some unneeded waits.
Schedule RandomSchedule(const Problem& problem, const Topology& topology, std::mt19937_64& random);

}  // namespace agmm::test
