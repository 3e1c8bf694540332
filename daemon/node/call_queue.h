// A lock, and a queue of calls that are made once it is released.
#pragma once

#include <deque>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace agmm {

// State guarded by this lock changes within Do. Calls to other objects (executors, the transport,
// reports) are queued in Do and made after the lock is released, in the order of queueing, by one
// thread at a time: their order never changes, and none of them re-enters locked state.
// Thread-safe.
class CallQueue {
 public:
  using Call = std::function<void()>;

  // Runs `change` under the lock, then makes the queued calls. While another thread is making
  // calls, that thread makes these as well.
  void Do(absl::FunctionRef<void()> change) {
    std::unique_lock lock(mutex_);
    change();
    if (std::exchange(calling_, true)) return;
    while (!calls_.empty()) {
      Call call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
      call = nullptr;  // objects that the call holds are released without the lock, too
      lock.lock();
    }
    calling_ = false;
    const std::vector<Call> last = std::exchange(last_, {});
    lock.unlock();
    for (const Call& call : last) call();
  }

  // To be called within Do.
  void Add(Call call) { calls_.push_back(std::move(call)); }
  // To be called within Do: makes `call` after all others. It may destroy the queue.
  void AddLast(Call call) { last_.push_back(std::move(call)); }

 private:
  std::mutex mutex_;  // guards all below
  std::deque<Call> calls_;
  std::vector<Call> last_;
  bool calling_ = false;
};

}  // namespace agmm
