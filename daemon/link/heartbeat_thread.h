// Sends the heartbeats of the streams between daemons, ends silent streams, and notices pauses of
// this daemon. It has its own thread, because a busy control loop must not delay heartbeats.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "daemon/link/pause.h"
#include "kernels/base/loop.h"

namespace agmm {

class HeartbeatStream {
 public:
  virtual ~HeartbeatStream() = default;
  // Called twice per kHeartbeatPeriod: ends the stream if it is silent (IsSilent). Not called after
  // this machine itself slept, because received messages may then still be unread.
  virtual void EndIfSilent(int64_t now_ns) = 0;
  // Called after EndIfSilent: sends a heartbeat if one is `due`, which is every other time, or if
  // the usage has changed.
  virtual void SendHeartbeat(bool due) = 0;
};

// Thread-safe. Sleeps while it has no stream.
class HeartbeatThread {
 public:
  // Reports its ticks to `pauses`, which must outlive this.
  explicit HeartbeatThread(PauseWatch* pauses) : pauses_(pauses) {}
  // RESOURCE_EXHAUSTED if the thread could not be started; then no heartbeats are sent.
  const absl::Status& status() const { return loop_.status(); }
  // Serves `stream` as long as another owner keeps it alive.
  void Watch(std::weak_ptr<HeartbeatStream> stream) { Schedule(std::move(stream), /*due=*/true); }

 private:
  void Schedule(std::weak_ptr<HeartbeatStream> stream, bool due);

  PauseWatch* const pauses_;
  Loop loop_{"heartbeats"};
};

}  // namespace agmm
