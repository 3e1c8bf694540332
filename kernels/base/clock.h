// Time, injected so that tests can move it.
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace agmm {

class Clock {
 public:
  virtual ~Clock() = default;
  // Wall time, which an administrator may set: for texts that people read, never for a wait.
  virtual absl::Time Now() const = 0;
  // Like MonotonicNanos.
  virtual int64_t Nanos() const = 0;
  // The machine's clock; never destroyed.
  static const Clock* Real();
};

// Nanoseconds on CLOCK_MONOTONIC, comparable within one host. Used for the times of steps.
int64_t MonotonicNanos();

}  // namespace agmm
