// A one-way switch that long work polls. Its callbacks wake threads that sleep.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"

namespace agmm {

// Shared by all threads that work for one call or job. Thread-safe.
class CancelToken {
 public:
  // Cancels with `reason` (not OK). The first reason wins; callbacks run once, on this thread.
  void Cancel(absl::Status reason) {
    std::vector<std::function<void(const absl::Status&)>> run;
    {
      std::lock_guard lock(mutex_);
      if (!reason_.ok()) return;
      reason_ = reason;
      run.swap(callbacks_);
    }
    for (auto& callback : run) callback(reason);
  }
  // OK while not cancelled, then the reason.
  absl::Status status() const {
    std::lock_guard lock(mutex_);
    return reason_;
  }
  // Runs `callback` on cancellation, or now if the token is already cancelled.
  void OnCancel(std::function<void(const absl::Status&)> callback) {
    absl::Status reason;
    {
      std::lock_guard lock(mutex_);
      if (reason_.ok()) {
        callbacks_.push_back(std::move(callback));
        return;
      }
      reason = reason_;
    }
    callback(reason);
  }

 private:
  mutable std::mutex mutex_;
  absl::Status reason_;
  std::vector<std::function<void(const absl::Status&)>> callbacks_;
};

}  // namespace agmm
