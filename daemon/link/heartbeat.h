// Beats the streams between daemons, ends silent ones, and notices pauses of this daemon, on a
// thread of its own, because a busy control loop must not delay heartbeats.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "daemon/link/pause.h"
#include "kernels/base/loop.h"

namespace agmm {

class Pulse {
 public:
  virtual ~Pulse() = default;
  // Twice a kHeartbeatPeriod: ends the stream if it is silent (IsSilent). Not called after
  // this machine itself slept, because received messages may then still be unread.
  virtual void Judge(int64_t now_ns) = 0;
  // After Judge: sends a heartbeat if one is `due`, which is every other time, or if it has news.
  virtual void Beat(bool due) = 0;
};

// Thread-safe. Sleeps while it has no pulse to beat.
class Heartbeat {
 public:
  // Has `pauses`, which outlives this, judge its ticks.
  explicit Heartbeat(PauseWatch* pauses) : pauses_(pauses) {}
  // RESOURCE_EXHAUSTED if it has no thread, and never beats.
  const absl::Status& status() const { return loop_.status(); }
  // Beats `pulse` as long as it lives elsewhere.
  void Watch(std::weak_ptr<Pulse> pulse) { Schedule(std::move(pulse), /*due=*/true); }

 private:
  void Schedule(std::weak_ptr<Pulse> pulse, bool due);

  PauseWatch* const pauses_;
  Loop loop_{"heartbeats"};
};

}  // namespace agmm
