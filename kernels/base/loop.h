// The daemon's one control thread. All state of the control plane (members, catalog, jobs, plans)
// is touched on it alone, so that none of it needs a lock. Nothing on it waits, and long work, such
// as planning and proving a new schedule, has its own thread (plan_cache.cc).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"

namespace agmm {

class Loop {
 public:
  using Task = std::function<void()>;
  using Timer = std::pair<Deadline, uint64_t>;  // when, number

  // `purpose` names its thread in errors, which `status` returns. Timers follow `clock`, which
  // outlives the loop.
  explicit Loop(absl::string_view purpose, const Clock* clock = Clock::Real());
  // Runs the tasks posted before, drops the timers, and joins the thread.
  ~Loop();
  Loop(const Loop&) = delete;

  // Runs `task` on the loop, in the order of posting. Thread-safe; after Stop it is dropped.
  void Post(Task task);
  // Runs `task` on the loop after all posted tasks and the tasks that these post, at the latest
  // after a few rounds of the loop. For work that a burst of tasks needs done once, at its end.
  // Thread-safe.
  void PostLast(Task task);
  // Runs `task` on the loop after `delay` unless cancelled. A clock that a test moves is read again
  // when the next task is posted. Thread-safe.
  Timer PostAfter(absl::Duration delay, Task task);
  // Runs the timers that are set now, and later ones as soon as they are set. Thread-safe.
  void RunTimersNow();
  // Has no effect if the timer has run. Must be called on the loop, so that the timer certainly
  // does not run afterwards.
  void Cancel(const Timer& timer);
  // Runs the posted tasks, then ends the thread. Must not be called on the loop itself.
  void Stop();
  bool OnLoop() const;
  // RESOURCE_EXHAUSTED if the loop's thread could not be started; then no task ever runs.
  const absl::Status& status() const { return status_; }

 private:
  void Run();

  const Clock* const clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Task> posted_, last_;
  std::map<Timer, Task> timers_;
  uint64_t next_timer_ = 1;
  bool timers_now_ = false, stopping_ = false;
  absl::Status status_;
  std::thread thread_;
};

}  // namespace agmm
