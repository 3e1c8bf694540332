// A schedule: for each rank, the ordered transfers, multiplies and reductions of one epoch, and the
// signals between them. Planners make it, Verify proves it, and executors run it; the order is
// defined only here. Tiles, stages and threads belong to the kernels.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/schedule/problem.h"
#include "kernels/schedule/step_op.h"

namespace agmm {

// The most bytes of a workspace.
inline constexpr int64_t kMaxWorkspaceBytes = int64_t{1} << 46;

// A monotonic 64-bit word in the memory of `rank`, the only rank that waits for it. One step
// produces it, by storing the number of the epoch.
struct Slot {
  Rank rank = 0;
  int index = 0;
  bool operator==(const Slot&) const = default;
  auto operator<=>(const Slot&) const = default;
};

// Holds when the slot has reached epoch - lag. Lag 1 is a credit: the reader in the previous epoch
// no longer uses the place. A wait for an epoch before 1 always holds.
struct Wait {
  Slot slot;
  int lag = 0;
  bool operator==(const Wait&) const = default;
};

struct Step {
  StepOp op = Join();
  int lane = 0;               // steps of a lane run in order; lanes are unordered: see RelayLanes
  std::vector<Wait> waits;    // all hold before the step starts
  std::vector<Slot> signals;  // set after the bytes they announce, in release order
  bool operator==(const Step&) const = default;
};

struct Schedule {
  std::string algorithm;
  int64_t workspace_bytes = 0;  // on every rank
  // By rank. The steps of a lane are in order; an index is a step's name.
  std::vector<std::vector<Step>> ranks;
  bool operator==(const Schedule&) const = default;
};

// Returns, by rank, one more than the highest index of its slots in the schedule.
std::vector<int> SlotCounts(const Schedule& schedule);
// Returns the number of steps of all ranks.
int64_t StepCount(const Schedule& schedule);
// Returns the memory of a schedule, as malloc counts it.
int64_t SizeBytes(const Schedule& schedule);
// Releases the spare capacity of its vectors.
void ShrinkToFit(Schedule* schedule);
// Returns the number of lanes of a rank: one more than its highest lane.
int LaneCount(const std::vector<Step>& steps);
// Returns, by lane, true for relay lanes, whose steps do not touch an operand of their rank. Only
// slots order these steps with those of other lanes, in each epoch and from one to the next: they
// may start before the rank's epoch begins, and its end does not wait for them. Lane 0 is never a
// relay lane, because its joins admit other ranks at the beginning of an epoch, and wait for them
// at its end.
std::vector<bool> RelayLanes(const std::vector<Step>& steps, Rank rank);
// Returns the bytes of a row of `block` at `place`, without padding.
int64_t RowBytes(const Block& block, const Place& place);
// Returns the bytes from the first to the last of `block` at `place`, including the padding between
// its rows.
int64_t SpanBytes(const Block& block, const Place& place);
// Returns the place of `inner` if `outer`, which contains it, is at `place`.
Place PlaceWithin(const Block& outer, const Place& place, const Block& inner);
// Returns true if the padding after the rows of `block` at `place` belongs to it, because the block
// reaches the last column of the shard or, in the workspace, of the operand.
bool OwnsPadding(const Problem& problem, const Block& block, const Place& place);
// Returns true if all bytes between two rows of `block` at `place` are padding that belongs to it:
// its rows are whole rows of the buffer.
bool OwnsGaps(const Problem& problem, const Block& block, const Place& place);
// Returns the place of `block` in the shard of its operand at `rank`, which holds it.
Place ResidentPlace(const Problem& problem, const Block& block, Rank rank);

}  // namespace agmm
