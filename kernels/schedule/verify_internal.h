// The parts of Verify, in the order in which they rely on each other.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/schedule/footprint.h"
#include "kernels/schedule/order.h"
#include "kernels/schedule/schedule.h"

namespace agmm::verify {

// Everything that can be said of a step by itself, and of the slots as a table.
absl::Status CheckStructure(const Problem& problem, const Topology& topology,
                            const Schedule& schedule);
// Multiplies whose sum stays on chip can run as one tile pass, each tile going through all of them:
// none waits for what follows an earlier one, and the last writes nothing that an earlier one
// reads.
absl::Status CheckPasses(const Problem& problem, const Schedule& schedule, const Order& order);
// Conflicting accesses are ordered, between the steps, epochs and environments. Needs
// CheckStructure.
absl::Status CheckRaces(const Problem& problem, const Schedule& schedule, const Order& order);
// Reads find what they name and C is complete. Walks one order of the steps, which stands for all
// of them once CheckRaces holds.
absl::Status CheckContents(const Problem& problem, const Schedule& schedule, const Order& order);

// What a step does to memory, as executors may do it: reads and writes of one step overlap in time.
struct Access {
  Rank rank = 0;  // of the step
  int step = 0;
  int to = -1;  // the arrival that does it, as in Event; -1: the step itself
  bool write = false;
  bool is_from = false;  // the read of Transfer::from
  Block block;
  Place place;
};
std::vector<Access> AccessesOf(const Step& step, Rank rank, int index);

// "A[0:4, 0:8]".
std::string BlockName(const Problem& problem, const Block& block);
// "rank 1's workspace", "rank 1's A".
std::string BufferName(const Problem& problem, Rank rank, Buffer buffer);
// "A[0:4, 0:8] at byte 512 of rank 1's workspace".
std::string PlacedName(const Problem& problem, const Block& block, const Place& place);

}  // namespace agmm::verify
