#include "kernels/cuda/gpu_health.h"

#include "absl/strings/str_format.h"

namespace agmm {

void GpuHealth::Watch(FailureFn on_failure) {
  std::lock_guard lock(mutex_);
  on_failure_ = std::move(on_failure);
}

bool GpuHealth::Enter(State& state, const absl::Status& why) {
  FailureFn on_failure;
  std::string failure;
  {
    std::lock_guard lock(mutex_);
    if (state.entered) return false;
    state.why = why;
    state.entered = true;
    if (!failure_.empty()) return true;
    failure = failure_ = absl::StrFormat("%s is %s: %s", where_, state.name, why.message());
    on_failure = on_failure_;
  }
  if (on_failure != nullptr) on_failure(failure);
  return true;
}

absl::Status GpuHealth::WhyOf(const State& state) const {
  if (!state.entered) return absl::OkStatus();
  std::lock_guard lock(mutex_);
  return state.why;
}

std::string GpuHealth::failure() const {
  std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace agmm
