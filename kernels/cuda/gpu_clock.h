// Times of a GPU's events on the host's clock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "kernels/cuda/streams.h"

namespace agmm {

// Accurate to some microseconds, because the two clocks are tied by an event that is seen soon
// after it was recorded, plus the drift until the next tie.
class GpuClock {
 public:
  static absl::StatusOr<std::unique_ptr<GpuClock>> Create(std::shared_ptr<Gpu> gpu);

  // Ties the clocks again if the last tie is old. Called often, and never waits.
  void Tend();
  // Returns the time of a completed event, in CLOCK_MONOTONIC nanoseconds.
  int64_t HostNanos(CUevent event) const;

 private:
  struct Anchor {
    CUevent event = nullptr;
    int64_t ns = 0;
  };

  GpuClock(std::shared_ptr<Gpu> gpu, std::unique_ptr<GpuStream> stream)
      : gpu_(gpu), stream_(std::move(stream)), events_(std::move(gpu)) {}

  const std::shared_ptr<Gpu> gpu_;
  const std::unique_ptr<GpuStream> stream_;
  GpuEvents events_;
  Anchor anchor_;
  Anchor next_;            // recorded at its time
  bool recorded_ = false;  // `next_` is recorded, and its end has not been seen
};

}  // namespace agmm
