// Time limits of tests, and waits for another thread or process.
#pragma once

#include <chrono>
#include <functional>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "kernels/base/deadline.h"

namespace agmm {

// A healthy machine needs a fraction of it; only a failing test waits this long.
inline constexpr absl::Duration kPatience = absl::Seconds(60);
inline constexpr std::chrono::milliseconds kPatienceMs{60'000};

// Returns true once `holds` does, or false if kPatience ends first.
inline bool Eventually(const std::function<bool()>& holds) {
  for (const Deadline end = Deadline::After(kPatience); !end.HasPassed();
       absl::SleepFor(absl::Milliseconds(2))) {
    if (holds()) return true;
  }
  return holds();
}

}  // namespace agmm
