#include "client/library/callback_loop.h"

#include <utility>

#include "absl/time/clock.h"

namespace agmm {

CallbackLoop::~CallbackLoop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = hurry_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CallbackLoop::Post(std::function<void()> task) {
  std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void CallbackLoop::PostIn(absl::Duration delay, std::function<void()> task) {
  std::lock_guard lock(mutex_);
  delayed_.emplace(absl::Now() + delay, std::move(task));
  changed_.notify_all();
}

void CallbackLoop::Hurry() {
  std::lock_guard lock(mutex_);
  hurry_ = true;
  changed_.notify_all();
}

void CallbackLoop::Run() {
  while (const std::function<void()> task = Take()) task();
}

std::function<void()> CallbackLoop::Take() {
  std::unique_lock lock(mutex_);
  while (true) {
    const absl::Time now = absl::Now();
    while (!delayed_.empty() && (hurry_ || delayed_.begin()->first <= now)) {
      tasks_.push_back(std::move(delayed_.begin()->second));
      delayed_.erase(delayed_.begin());
    }
    if (!tasks_.empty()) {
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      return task;
    }
    if (stopping_) return nullptr;
    if (delayed_.empty())
      changed_.wait(lock);
    else
      changed_.wait_for(lock, absl::ToChronoNanoseconds(delayed_.begin()->first - now));
  }
}

}  // namespace agmm
