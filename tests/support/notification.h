// A one-time event, made of standard classes that the sanitizers understand.
#pragma once

#include <condition_variable>
#include <mutex>

#include "absl/time/time.h"

namespace agmm {

class Notification {
 public:
  Notification() = default;
  // Waits for Notify() to return.
  ~Notification() { std::lock_guard lock(mutex_); }
  void Notify() {
    std::lock_guard lock(mutex_);
    notified_ = true;
    changed_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return notified_; });
  }
  // Returns false if the event has not happened within `patience`.
  bool WaitFor(absl::Duration patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoNanoseconds(patience),
                             [this] { return notified_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool notified_ = false;
};

}  // namespace agmm
