// Times of a GPU's events on the host's clock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "kernels/cuda/streams.h"

namespace agmm {

// Right to some microseconds, because an event is recorded and seen soon after to tie the two
// clocks, and to as much more as they drift apart until that happens again.
class GpuClock {
 public:
  static absl::StatusOr<std::unique_ptr<GpuClock>> Create(std::shared_ptr<Gpu> gpu);

  // Ties the clocks again if that was long ago. Often called, it never waits.
  void Tend();
  // Time of an event that is done, in CLOCK_MONOTONIC nanoseconds.
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
  bool recorded_ = false;  // `next_` is, and has not been seen done
};

}  // namespace agmm
