#include "kernels/base/loop.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/thread.h"

namespace agmm {
namespace {
// PostLast tasks run after at most this many busy rounds.
constexpr int kMaxRounds = 4;
}  // namespace

Loop::Loop(absl::string_view purpose, const Clock* clock) : clock_(clock) {
  absl::StatusOr<std::thread> thread = StartThread(purpose, [this] { Run(); });
  status_ = thread.status();
  if (thread.ok()) thread_ = *std::move(thread);
}

Loop::~Loop() { Stop(); }

// Notifies with the lock held, because the posted task may end the loop.
void Loop::Post(Task task) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  posted_.push_back(std::move(task));
  if (posted_.size() == 1) wake_.notify_one();
}

void Loop::PostLast(Task task) {
  std::lock_guard lock(mutex_);
  if (stopping_) return;
  last_.push_back(std::move(task));
  if (last_.size() == 1) wake_.notify_one();
}

Loop::Timer Loop::PostAfter(absl::Duration delay, Task task) {
  std::lock_guard lock(mutex_);
  const Timer timer{Deadline::After(delay, clock_->Nanos()), next_timer_++};
  if (stopping_) return timer;
  timers_.emplace(timer, std::move(task));
  if (timers_.begin()->first == timer) wake_.notify_one();
  return timer;
}

void Loop::Cancel(const Timer& timer) {
  std::lock_guard lock(mutex_);
  timers_.erase(timer);
}

void Loop::RunTimersNow() {
  std::lock_guard lock(mutex_);
  timers_now_ = true;
  wake_.notify_one();
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
  int rounds = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    // Due timers run even on a busy loop: one a round, taken from the map at the last moment, so
    // that Cancel always works on the loop.
    Task timer;
    if (!timers_.empty() &&
        (timers_now_ || timers_.begin()->first.first.HasPassed(clock_->Nanos()))) {
      timer = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
    } else if (posted_.empty() && last_.empty()) {
      if (stopping_) return;
      if (timers_.empty()) {
        wake_.wait(lock);
      } else {
        const absl::Duration left = timers_.begin()->first.first.Left(clock_->Nanos());
        wake_.wait_until(lock, Deadline::After(left).time_point());
      }
      continue;
    }
    tasks.swap(posted_);
    if (tasks.empty() || ++rounds == kMaxRounds) {
      std::move(last_.begin(), last_.end(), std::back_inserter(tasks));
      last_.clear();
      rounds = 0;
    }
    lock.unlock();
    if (timer) timer();
    timer = nullptr;
    for (Task& task : tasks) task();
    tasks.clear();
    lock.lock();
  }
}

}  // namespace agmm
