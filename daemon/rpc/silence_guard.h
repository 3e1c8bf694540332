// Notices when a client has stopped without hanging up, so that what its call holds is given back.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>

#include "absl/base/thread_annotations.h"
#include "absl/time/time.h"
#include "daemon/world/loop.h"

namespace agmm {

class SilenceGuard {
 public:
  // Runs `silent` on the loop after each `limit` without a Touch.
  SilenceGuard(Loop* loop, absl::Duration limit, std::function<void()> silent);
  // `silent` does not run any more. Not from `silent`, nor with a lock that it takes.
  ~SilenceGuard();

  // Thread-safe, lock-free.
  void Touch();

 private:
  struct State {
    std::mutex mutex;
    std::function<void()> silent ABSL_GUARDED_BY(mutex);
    std::atomic<int64_t> last_ns{0};
  };
  static void Watch(Loop* loop, absl::Duration limit, std::weak_ptr<State> state);

  const std::shared_ptr<State> state_;
};

}  // namespace agmm
