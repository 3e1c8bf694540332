#include "kernels/cuda/gpu_clock.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "kernels/base/clock.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// Clocks drift apart by some 20 us a second.
constexpr int64_t kFreshNs = 100'000'000, kNsOfDrift = 50'000;
// An event ties the clocks only if its end is seen within this time of its recording. A GPU may be
// busy for longer; then the bound is the drift since the last tie, if that is larger.
constexpr int64_t kSoonNs = 100'000;
// The first tie is the best of this many, because a busy host may see any of them late.
constexpr int kFirstTies = 20;

}  // namespace

absl::StatusOr<std::unique_ptr<GpuClock>> GpuClock::Create(std::shared_ptr<Gpu> gpu) {
  AGMM_ASSIGN_OR_RETURN(auto stream, GpuStream::Create(gpu));
  std::unique_ptr<GpuClock> clock(new GpuClock(gpu, std::move(stream)));
  for (Anchor* anchor : {&clock->anchor_, &clock->next_}) {
    AGMM_ASSIGN_OR_RETURN(anchor->event, clock->events_.Make());
  }
  const OnGpu here(*gpu);
  Anchor& anchor = clock->anchor_;
  Anchor& next = clock->next_;
  int64_t best_ns = std::numeric_limits<int64_t>::max();
  for (int tie = 0; tie < kFirstTies && best_ns > kSoonNs; ++tie) {
    next.ns = MonotonicNanos();
    AGMM_CUDA_RETURN(*gpu, cuEventRecord, next.event, clock->stream_->get());
    AGMM_RETURN_IF_ERROR(gpu->Await(next.event, 0, "a first event"));
    const int64_t late_ns = MonotonicNanos() - next.ns;
    if (late_ns >= best_ns) continue;
    best_ns = late_ns;
    std::swap(anchor, next);
  }
  return clock;
}

void GpuClock::Tend() {
  const int64_t now_ns = MonotonicNanos();
  if (recorded_) {
    if (gpu_->driver().cuEventQuery(next_.event) != CUDA_SUCCESS) return;
    recorded_ = false;
    const int64_t drift_ns = (next_.ns - anchor_.ns) / kNsOfDrift;
    if (now_ns - next_.ns < std::max(kSoonNs, drift_ns)) std::swap(anchor_, next_);
  } else if (now_ns - anchor_.ns > kFreshNs) {
    next_.ns = now_ns;
    recorded_ = gpu_->driver().cuEventRecord(next_.event, stream_->get()) == CUDA_SUCCESS;
  }
}

int64_t GpuClock::HostNanos(CUevent event) const {
  float milliseconds = 0;
  if (gpu_->driver().cuEventElapsedTime(&milliseconds, anchor_.event, event) != CUDA_SUCCESS)
    return 0;
  return anchor_.ns + static_cast<int64_t>(milliseconds * 1e6);
}

}  // namespace agmm
