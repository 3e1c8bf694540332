// A moment on this host's monotonic clock, which does not change when the wall clock is set.
// Everything that waits takes one; wall time (absl::Time) is for texts that people read.
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <limits>

#include "absl/time/time.h"
#include "kernels/base/clock.h"

namespace agmm {

class Deadline {
 public:
  // Infinite.
  constexpr Deadline() = default;
  static constexpr Deadline Infinite() { return Deadline(); }
  static Deadline After(absl::Duration time) { return After(time, MonotonicNanos()); }
  // Infinite if the nanoseconds would overflow.
  static Deadline After(absl::Duration time, int64_t now_ns) {
    const int64_t time_ns = absl::ToInt64Nanoseconds(time);
    return time_ns >= Infinite().ns_ - now_ns ? Infinite() : Deadline(now_ns + time_ns);
  }

  // Negative once it has passed.
  absl::Duration Left() const { return Left(MonotonicNanos()); }
  absl::Duration Left(int64_t now_ns) const {
    if (*this == Infinite()) return absl::InfiniteDuration();
    return absl::Nanoseconds(ns_) - absl::Nanoseconds(now_ns);
  }
  bool HasPassed() const { return HasPassed(MonotonicNanos()); }
  bool HasPassed(int64_t now_ns) const { return ns_ <= now_ns; }

  // For waits of std::condition_variable.
  std::chrono::steady_clock::time_point time_point() const {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns_));
  }

  friend auto operator<=>(const Deadline&, const Deadline&) = default;

 private:
  explicit constexpr Deadline(int64_t ns) : ns_(ns) {}
  int64_t ns_ = std::numeric_limits<int64_t>::max();
};

}  // namespace agmm
