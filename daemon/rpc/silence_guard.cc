#include "daemon/rpc/silence_guard.h"

#include <utility>

#include "kernels/base/clock.h"

namespace agmm {

SilenceGuard::SilenceGuard(Loop* loop, absl::Duration limit, std::function<void()> silent)
    : state_(std::make_shared<State>()) {
  {
    std::lock_guard lock(state_->mutex);
    state_->silent = std::move(silent);
  }
  Touch();
  Watch(loop, limit, state_);
}

SilenceGuard::~SilenceGuard() {
  std::lock_guard lock(state_->mutex);
  state_->silent = nullptr;
}

void SilenceGuard::Touch() { state_->last_ns.store(MonotonicNanos(), std::memory_order_relaxed); }

void SilenceGuard::Watch(Loop* loop, absl::Duration limit, std::weak_ptr<State> weak) {
  loop->PostAfter(limit, [loop, limit, weak = std::move(weak)] {
    const std::shared_ptr<State> state = weak.lock();
    if (state == nullptr) return;
    std::lock_guard lock(state->mutex);
    if (state->silent == nullptr) return;
    const int64_t quiet_ns = MonotonicNanos() - state->last_ns.load(std::memory_order_relaxed);
    if (quiet_ns >= absl::ToInt64Nanoseconds(limit)) {
      state->silent();
      state->last_ns.store(MonotonicNanos(), std::memory_order_relaxed);
    }
    Watch(loop, limit, state);
  });
}

}  // namespace agmm
