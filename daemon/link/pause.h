// Pauses of this daemon itself: its process was stopped, or its host was suspended or too busy to
// run it. To such a daemon, all others seem to have left.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

namespace agmm {

// Detects pauses by a late tick. Thread-safe. Times are those of PauseNanos.
class PauseWatch {
 public:
  // `node` names this node: "node a (10.0.0.1:7101)".
  explicit PauseWatch(std::string node) : node_(std::move(node)) {}

  // Announces a tick at `due_ns`.
  void Expect(int64_t due_ns);
  // Called when the tick that was expected at `due_ns` happens; none is expected until the next
  // Expect.
  void Tick(int64_t due_ns, int64_t now_ns);
  // Returns a clause about a pause that ended at most a few seconds ago, in which the others may
  // have given up this daemon: "node a (10.0.0.1:7101) was paused for 4.2 s (its process was
  // stopped, or its host was suspended or overloaded)". Empty without a pause. Works even right
  // before the late tick.
  std::string Recent(int64_t now_ns) const;

 private:
  const std::string node_;
  mutable std::mutex mutex_;  // guards what follows
  int64_t due_ns_ = 0;        // of the next tick; 0: none is expected
  int64_t paused_ns_ = 0, resumed_ns_ = 0;
};

// Returns nanoseconds on CLOCK_BOOTTIME, which continues while the host is suspended.
int64_t PauseNanos();

}  // namespace agmm
