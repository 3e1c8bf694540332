#include "kernels/device/rank_plan.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

// Returns the time since `since_ns`: "5.0 s", "40 ms".
std::string TimeSince(int64_t since_ns) {
  const double seconds = (MonotonicNanos() - since_ns) * 1e-9;
  return seconds >= 1 ? absl::StrFormat("%.1f s", seconds) : FormatMicros(seconds * 1e6);
}

}  // namespace

absl::Status RankPlan::CheckPeers() const {
  const size_t ranks = schedule->ranks.size();
  if (problem.mesh.ranks.size() != ranks || peers.executors.size() != ranks ||
      peers.heaps.size() != ranks || peers.nodes.size() != ranks || peers.self < 0 ||
      peers.self >= static_cast<Rank>(ranks) || peers.heaps[peers.self] == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the schedule has %d ranks; the mesh has %d, and %d executors, %d heaps "
                        "and %d nodes were given for rank %d",
                        ranks, problem.mesh.ranks.size(), peers.executors.size(),
                        peers.heaps.size(), peers.nodes.size(), peers.self));
  }
  for (Rank rank = 0; rank < static_cast<Rank>(ranks); ++rank) {
    if (IsLocal(rank) && (peers.executors[rank] == nullptr || peers.heaps[rank] == nullptr)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "rank %d is on node %d with rank %d and has no %s", rank, peers.nodes[rank], peers.self,
          peers.heaps[rank] == nullptr ? "heap" : "executor"));
    }
  }
  return absl::OkStatus();
}

HeapPlace RankPlan::Locate(const Place& place) const {
  Heap* const heap = IsLocal(place.rank) ? peers.heaps[place.rank] : nullptr;
  return {place.rank, place.buffer, heap, place.offset_bytes, place.pitch_bytes, place.dtype};
}

absl::Status RankPlan::CheckOperands(const Operands& operands) const {
  const size_t count = problem.tensors.size();
  if (operands.offsets.size() != count || operands.versions.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d offsets and %d versions were given for %d operands",
                        operands.offsets.size(), operands.versions.size(), count));
  }
  for (int i = 0; i < static_cast<int>(count); ++i) {
    AGMM_RETURN_IF_ERROR(CheckLies(problem.tensors[i].name, operands.offsets[i], BufferBytes(i)));
  }
  return CheckLies("the workspace", operands.workspace_offset, BufferBytes(kWorkspace));
}

int64_t RankPlan::BufferBytes(Buffer buffer) const {
  if (buffer == kWorkspace) return schedule->workspace_bytes;
  return ShardBytes(problem.mesh, problem.tensors[buffer]);
}

absl::Status RankPlan::CheckLies(absl::string_view name, int64_t offset, int64_t bytes) const {
  for (Heap* heap : peers.heaps) {
    if (heap == nullptr || bytes == 0) continue;
    if (offset < 0 || offset % kRowAlignBytes != 0 || offset > heap->size_bytes() - bytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s of %d B at offset %d does not lie in a heap of %d B at a multiple of %d", name, bytes,
          offset, heap->size_bytes(), kRowAlignBytes));
    }
  }
  return absl::OkStatus();
}

std::string RankPlan::StepName(int step) const {
  return absl::StrFormat("rank %d lane %d step %d", WorldRank(peers.self), steps()[step].lane,
                         step);
}

std::string RankPlan::MeshStepName(int step) const {
  return absl::StrFormat("rank %d lane %d step %d", peers.self, steps()[step].lane, step);
}

std::string RankPlan::What(int step) const { return Describe(problem, steps()[step]); }

std::string RankPlan::Waiting(int step, int64_t since_ns, const Slot& slot) const {
  return absl::StrFormat("%s waited %s for slot %d:%d (%s)", StepName(step), TimeSince(since_ns),
                         WorldRank(slot.rank), slot.index, Producer(slot));
}

std::string RankPlan::AtWork(int step, int64_t since_ns) const {
  return absl::StrFormat("%s was still at work after %s (%s)", StepName(step), TimeSince(since_ns),
                         What(step));
}

std::string RankPlan::Ready(int step, int64_t since_ns) const {
  return absl::StrFormat("%s was ready for up to %s, and no worker had begun it (%s)",
                         StepName(step), TimeSince(since_ns), What(step));
}

std::string RankPlan::InFlight(int messages, int64_t since_ns) const {
  if (messages == 0) {
    return absl::StrFormat("rank %d had done its steps after %s", WorldRank(peers.self),
                           TimeSince(since_ns));
  }
  return absl::StrFormat("rank %d had %s to other nodes in flight after %s", WorldRank(peers.self),
                         Counted(messages, "message"), TimeSince(since_ns));
}

std::string RankPlan::Stall(const RankState& state) const {
  // The lane that has waited longest is closest to the cause.
  const LaneState *waiting = nullptr, *busy = nullptr, *ready = nullptr;
  for (const LaneState& lane : state.lanes) {
    if (lane.ready) {
      ready = &lane;
    } else if (lane.missing.empty()) {
      busy = &lane;
    } else if (waiting == nullptr || lane.since_ns < waiting->since_ns) {
      waiting = &lane;
    }
  }
  const std::string what =
      waiting != nullptr ? Waiting(waiting->step, waiting->since_ns, waiting->missing.front().slot)
      : busy != nullptr  ? AtWork(busy->step, busy->since_ns)
      : ready != nullptr ? Ready(ready->step, ready->since_ns)
                         : InFlight(state.in_flight, state.start_ns);
  return absl::StrFormat("%s, epoch %d", what, state.epoch);
}

std::string RankPlan::NotSent(int step, uint64_t epoch) const {
  return absl::StrFormat("%s could not be sent (%s), epoch %d", StepName(step), What(step), epoch);
}

std::string RankPlan::Producer(const Slot& slot) const {
  for (size_t rank = 0; rank < schedule->ranks.size(); ++rank) {
    for (const Step& step : schedule->ranks[rank]) {
      if (std::count(step.signals.begin(), step.signals.end(), slot) == 0) continue;
      return absl::StrFormat("rank %d: %s", WorldRank(static_cast<Rank>(rank)),
                             Describe(problem, step));
    }
  }
  return "which no step raises";
}

}  // namespace agmm
