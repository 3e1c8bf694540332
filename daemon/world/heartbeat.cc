#include "daemon/world/heartbeat.h"

#include <chrono>
#include <utility>

#include "daemon/world/protocol.h"
#include "kernels/base/clock.h"

namespace agmm {

Heartbeat::Heartbeat() : thread_([this] { Run(); }) {}

Heartbeat::~Heartbeat() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void Heartbeat::Watch(std::weak_ptr<Pulse> pulse) {
  std::lock_guard lock(mutex_);
  pulses_.push_back(std::move(pulse));
  if (pulses_.size() == 1) wake_.notify_one();
}

void Heartbeat::Run() {
  const int64_t period_ns = absl::ToInt64Nanoseconds(kHeartbeatPeriod / 2);
  bool due = false;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (pulses_.empty()) {
      wake_.wait(lock);
      continue;
    }
    const int64_t before_ns = MonotonicNanos();
    wake_.wait_for(lock, std::chrono::nanoseconds(period_ns), [this] { return stopping_; });
    if (stopping_) return;
    const int64_t now_ns = MonotonicNanos();
    std::vector<std::shared_ptr<Pulse>> alive;
    for (const std::weak_ptr<Pulse>& pulse : std::exchange(pulses_, {})) {
      alive.push_back(pulse.lock());
      if (alive.back() == nullptr) {
        alive.pop_back();
      } else {
        pulses_.push_back(pulse);
      }
    }
    lock.unlock();
    due = !due;
    for (const auto& pulse : alive) {
      if (now_ns - before_ns < 2 * period_ns) pulse->Judge(now_ns);
      pulse->Beat(due);
    }
    alive.clear();
    lock.lock();
  }
}

}  // namespace agmm
