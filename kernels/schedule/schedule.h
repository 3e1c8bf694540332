// A schedule: for each rank, the ordered transfers, multiplies and reductions of one epoch, and the
// signals between them. Planners make it, Verify proves it, and executors run it; the order is
// defined only here. Tiles, stages and threads belong to the kernels.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "kernels/schedule/problem.h"

namespace agmm {

// An operand (a resident shard), or the plan's workspace.
using Buffer = int;
inline constexpr Buffer kWorkspace = -1;
// The most bytes of a workspace.
inline constexpr int64_t kMaxWorkspaceBytes = int64_t{1} << 46;

// The place of a block. Resident buffers get their base address at launch. Rows of a buffer begin
// at multiples of kRowAlignBytes, so pitch_bytes is such a multiple; a block begins at any element
// of a row.
struct Place {
  Rank rank = 0;
  Buffer buffer = kWorkspace;
  int64_t offset_bytes = 0, pitch_bytes = 0;
  DType dtype = DType::kF32;
  bool operator==(const Place&) const = default;
};

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

// Copies `block` from one place to others. signals[i] is set once to[i] holds the bytes. A `to` at
// another rank needs a signal at that rank, because only a step that has seen the signal finds the
// bytes complete. The step ends when `from` has been read and each `to` at its own rank is written;
// signals after the last `to` are then set. Once all `to` hold the bytes, `from` has been read: a
// step that has seen the signals of all of them may write over `from`. Verify relies on this rule,
// so every executor has to keep it.
struct Transfer {
  Block block;
  Place from;
  std::vector<Place> to;  // at least one
  // Index of the Multiply step of this rank whose tiles feed it, or -1. The transfers of a lane run
  // along with their multiplies, in the same order.
  int carrier = -1;
  bool operator==(const Transfer&) const = default;
};

// c (+)= a * b over the slice of K that a and b name, summed in f32.
//   accumulate false: the sum starts from zero; true: from `acc`, or without one from the multiply
//   just before in this lane, on the same c (one tile pass, the sum stays on chip). finish true:
//   converts the sum into `out`; false: leaves it in `acc`, or on chip.
struct Multiply {
  Block a, b, c;
  Place a_place, b_place;
  std::optional<Place> acc;  // f32
  Place out;                 // unused unless finish
  bool accumulate = false, finish = true;
  bool operator==(const Multiply&) const = default;
};

// into += from, both partial sums of c; then, if finish, `out` = into, converted. `into` is f32;
// `from` may be narrower, or at a peer.
struct Reduce {
  Block c;
  Place from, into, out;
  bool finish = false;
  bool operator==(const Reduce&) const = default;
};

// Moves nothing: the step only waits and signals.
struct Join {
  bool operator==(const Join&) const = default;
};

using StepOp = std::variant<Transfer, Multiply, Reduce, Join>;

struct Step {
  StepOp op = Join();
  int lane = 0;               // steps of a lane run in order; lanes are unordered: see RelayLanes
  std::vector<Wait> waits;    // all hold before the step starts
  std::vector<Slot> signals;  // set after the step's last byte, release order
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
