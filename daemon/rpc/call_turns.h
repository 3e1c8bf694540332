// Queues calls for the sequencer's loop. Owners of calls take turns, so that a client with
// thousands of pending calls delays only itself; the loop does other work in between.
#pragma once

#include <deque>
#include <map>
#include <mutex>
#include <string>

#include "kernels/base/loop.h"

namespace agmm {

// Thread-safe.
class CallTurns {
 public:
  // Runs calls on `loop`, which must stop before this ends.
  explicit CallTurns(Loop* loop) : loop_(loop) {}
  // Runs `call` on the loop. The calls of one owner (OwnerOf the principal) run in order.
  void Post(const std::string& principal, Loop::Task call);

 private:
  using Owners = std::map<std::string, std::deque<Loop::Task>>;

  void Run();

  Loop* const loop_;
  std::mutex mutex_;  // guards what follows
  Owners owners_;
  std::deque<Owners::iterator> turns_;  // owners with calls, the next one first
  bool running_ = false;                // Run is posted
};

}  // namespace agmm
