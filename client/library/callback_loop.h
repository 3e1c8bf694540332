// The thread that a client's callbacks run on.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "absl/time/time.h"

namespace agmm {

// Runs what is posted, in order. Thread-safe; tasks may post.
class CallbackLoop {
 public:
  CallbackLoop() : thread_([this] { Run(); }) {}
  // Runs what has been posted. Not from a task.
  ~CallbackLoop();
  CallbackLoop(const CallbackLoop&) = delete;

  void Post(std::function<void()> task);
  void PostIn(absl::Duration delay, std::function<void()> task);
  // From now on nothing is delayed.
  void Hurry();
  bool OnThisThread() const { return std::this_thread::get_id() == thread_.get_id(); }

 private:
  void Run();
  // The next task that is due; empty when there will be none.
  std::function<void()> Take();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::multimap<absl::Time, std::function<void()>> delayed_;
  bool hurry_ = false, stopping_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace agmm
