// Failpoints with which tests hold up the steps of a rank, on devices of every kind. Without
// failpoints nothing of them is compiled in.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/device/rank_plan.h"

namespace agmm {

// Returns true while a test keeps all steps of the plan's rank waiting.
inline bool IsHeld([[maybe_unused]] const RankPlan& plan) {
  return AGMM_FAILPOINT(absl::StrFormat("executor.hold_rank_%d", plan.WorldRank(plan.peers.self)));
}

// While a test delays steps: the time to sleep now, of up to a millisecond, half of the time zero.
inline std::optional<absl::Duration> RandomDelay() {
  if (!AGMM_FAILPOINT("executor.delay")) return std::nullopt;
  thread_local uint64_t state = static_cast<uint64_t>(MonotonicNanos()) | 1;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % 2 == 0 ? absl::Microseconds(state / 2 % 1000) : absl::ZeroDuration();
}

}  // namespace agmm
