#include "daemon/world/loop.h"

#include <chrono>

#include "kernels/base/clock.h"

namespace agmm {

Loop::Loop() : thread_([this] { Run(); }) {}

Loop::~Loop() { Stop(); }

void Loop::Post(Task task) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  posted_.push_back(std::move(task));
  if (posted_.size() == 1) wake_.notify_one();
}

Loop::Timer Loop::PostAfter(absl::Duration delay, Task task) {
  std::lock_guard lock(mutex_);
  const Timer timer{MonotonicNanos() + absl::ToInt64Nanoseconds(delay), next_timer_++};
  if (stopping_) return timer;
  timers_.emplace(timer, std::move(task));
  if (timers_.begin()->first == timer) wake_.notify_one();
  return timer;
}

void Loop::Cancel(const Timer& timer) {
  std::lock_guard lock(mutex_);
  timers_.erase(timer);
}

void Loop::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    timers_.clear();
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

bool Loop::OnLoop() const { return std::this_thread::get_id() == thread_.get_id(); }

void Loop::Run() {
  std::vector<Task> tasks;
  std::unique_lock lock(mutex_);
  while (true) {
    if (posted_.empty()) {
      if (stopping_) return;
      if (timers_.empty()) {
        wake_.wait(lock);
        continue;
      }
      const int64_t wait_ns = timers_.begin()->first.first - MonotonicNanos();
      if (wait_ns > 0) {
        wake_.wait_for(lock, std::chrono::nanoseconds(wait_ns));
        continue;
      }
      posted_.push_back(std::move(timers_.begin()->second));
      timers_.erase(timers_.begin());
    }
    tasks.swap(posted_);
    lock.unlock();
    for (Task& task : tasks) task();
    tasks.clear();
    lock.lock();
  }
}

}  // namespace agmm
