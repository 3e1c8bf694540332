#include "daemon/link/heartbeat_thread.h"

#include "daemon/link/protocol.h"
#include "kernels/base/clock.h"

namespace agmm {

void HeartbeatThread::Schedule(std::weak_ptr<HeartbeatStream> stream, bool due) {
  // All streams share their ticks, so that an idle daemon wakes once for all of them.
  const int64_t tick_ns = absl::ToInt64Nanoseconds(kHeartbeatPeriod / 2);
  const int64_t before_ns = MonotonicNanos();
  const int64_t delay_ns = tick_ns - before_ns % tick_ns;
  const int64_t due_ns = PauseNanos() + delay_ns;
  pauses_->Expect(due_ns);
  loop_.PostAfter(absl::Nanoseconds(delay_ns), [=, this] {
    pauses_->Tick(due_ns, PauseNanos());
    const std::shared_ptr<HeartbeatStream> alive = stream.lock();
    if (alive == nullptr) return;
    const int64_t now_ns = MonotonicNanos();
    if (now_ns - before_ns < 2 * tick_ns) alive->EndIfSilent(now_ns);
    alive->SendHeartbeat(due);
    Schedule(stream, !due);
  });
}

}  // namespace agmm
