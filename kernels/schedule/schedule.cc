#include "kernels/schedule/schedule.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/base/malloc_bytes.h"
#include "kernels/base/units.h"

namespace agmm {

std::vector<int> SlotCounts(const Schedule& schedule) {
  std::vector<int> counts(schedule.ranks.size(), 0);
  auto see = [&](const Slot& slot) {
    if (slot.rank >= 0 && slot.rank < static_cast<int>(counts.size()))
      counts[slot.rank] = std::max(counts[slot.rank], slot.index + 1);
  };
  for (const auto& steps : schedule.ranks) {
    for (const Step& step : steps) {
      for (const Wait& wait : step.waits) see(wait.slot);
      for (const Slot& slot : step.signals) see(slot);
    }
  }
  return counts;
}

int64_t StepCount(const Schedule& schedule) {
  int64_t count = 0;
  for (const std::vector<Step>& steps : schedule.ranks) count += static_cast<int64_t>(steps.size());
  return count;
}

int64_t SizeBytes(const Schedule& schedule) {
  int64_t bytes = 0;
  const auto add = [&](const auto& vector) { bytes += MallocBytesOf(vector); };
  add(schedule.ranks);
  for (const auto& steps : schedule.ranks) {
    add(steps);
    for (const Step& step : steps) {
      add(step.waits);
      add(step.signals);
      if (const auto* transfer = std::get_if<Transfer>(&step.op)) add(transfer->to);
      if (const auto* reduce = std::get_if<Reduce>(&step.op)) add(reduce->from);
    }
  }
  return bytes;
}

void ShrinkToFit(Schedule* schedule) {
  // Keeps capacity that malloc's rounding would allocate anyway.
  const auto shrink = [](auto& vector) {
    using T = typename std::decay_t<decltype(vector)>::value_type;
    if (MallocBytesOf(vector) > MallocBytes(vector.size() * sizeof(T))) vector.shrink_to_fit();
  };
  for (std::vector<Step>& steps : schedule->ranks) {
    shrink(steps);
    for (Step& step : steps) {
      shrink(step.waits);
      shrink(step.signals);
      if (auto* transfer = std::get_if<Transfer>(&step.op)) shrink(transfer->to);
      if (auto* reduce = std::get_if<Reduce>(&step.op)) shrink(reduce->from);
    }
  }
}

int LaneCount(const std::vector<Step>& steps) {
  int count = 0;
  for (const Step& step : steps) count = std::max(count, step.lane + 1);
  return count;
}

namespace {

bool TouchesOperand(const Step& step, Rank rank) {
  bool touches = false;
  ForEachPlace(step.op, [&](const Block&, const Place& place, Use) {
    touches |= place.rank == rank && place.buffer != kWorkspace;
  });
  return touches;
}

}  // namespace

std::vector<bool> RelayLanes(const std::vector<Step>& steps, Rank rank) {
  std::vector<bool> relays(LaneCount(steps), true);
  if (!relays.empty()) relays[0] = false;
  for (const Step& step : steps)
    if (relays[step.lane] && TouchesOperand(step, rank)) relays[step.lane] = false;
  return relays;
}

int64_t RowBytes(const Block& block, const Place& place) {
  return block.cols.size() * SizeOf(place.dtype);
}

int64_t SpanBytes(const Block& block, const Place& place) {
  if (block.empty()) return 0;
  return (block.rows.size() - 1) * place.pitch_bytes + RowBytes(block, place);
}

Place PlaceWithin(const Block& outer, const Place& place, const Block& inner) {
  Place out = place;
  out.offset_bytes += (inner.rows.begin - outer.rows.begin) * place.pitch_bytes +
                      (inner.cols.begin - outer.cols.begin) * SizeOf(place.dtype);
  return out;
}

bool OwnsPadding(const Problem& problem, const Block& block, const Place& place) {
  if (place.buffer == kWorkspace) return block.cols.end == problem.tensors[block.operand].cols;
  const Tensor& tensor = problem.tensors[place.buffer];
  const Position at = PositionAlong(problem.mesh, tensor.sharding.cols, place.rank);
  return block.cols.end == SplitRange(tensor.cols, at.parts, at.part).end;
}

bool OwnsGaps(const Problem& problem, const Block& block, const Place& place) {
  return OwnsPadding(problem, block, place) && place.offset_bytes % kRowAlignBytes == 0 &&
         place.pitch_bytes == RoundUp(RowBytes(block, place), kRowAlignBytes);
}

Place ResidentPlace(const Problem& problem, const Block& block, Rank rank) {
  const Tensor& tensor = problem.tensors[block.operand];
  const Place whole = {rank, block.operand, 0, ShardPitchBytes(problem.mesh, tensor), tensor.dtype};
  return PlaceWithin(ShardBlock(problem, block.operand, rank), whole, block);
}

}  // namespace agmm
