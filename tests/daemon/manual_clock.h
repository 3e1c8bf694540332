// A clock for tests of timers.
#pragma once

#include <atomic>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/clock.h"

namespace agmm {

// A clock that stands still until the test moves it.
class ManualClock final : public Clock {
 public:
  absl::Time Now() const override {
    return start_ + absl::Nanoseconds(passed_ns_.load() + set_ns_.load());
  }
  int64_t Nanos() const override { return start_ns_ + passed_ns_.load(); }
  void Advance(absl::Duration by) { passed_ns_ += absl::ToInt64Nanoseconds(by); }
  // Sets the wall clock, like an administrator.
  void SetWall(absl::Duration by) { set_ns_ += absl::ToInt64Nanoseconds(by); }

 private:
  const absl::Time start_ = absl::Now();
  const int64_t start_ns_ = MonotonicNanos();
  std::atomic<int64_t> passed_ns_{0}, set_ns_{0};
};

}  // namespace agmm
