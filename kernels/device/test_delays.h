// A failpoint with which tests delay the steps of a rank, on devices of every kind. A build without
// failpoints contains none of this code.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"

namespace agmm {

// While a test delays steps, returns the time to sleep now: up to a millisecond, in half of the
// cases zero.
inline std::optional<absl::Duration> RandomDelay() {
  if (!AGMM_FAILPOINT("executor.delay")) return std::nullopt;
  thread_local uint64_t state = static_cast<uint64_t>(MonotonicNanos()) | 1;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % 2 == 0 ? absl::Microseconds(state / 2 % 1000) : absl::ZeroDuration();
}

}  // namespace agmm
