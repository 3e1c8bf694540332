#include "daemon/link/pause.h"

#include <time.h>

#include "absl/strings/str_format.h"
#include "daemon/link/protocol.h"

namespace agmm {
namespace {

// The others give up a daemon if nothing has arrived since its last heartbeat.
const int64_t kPauseNs =
    absl::ToInt64Nanoseconds(kSilenceLimit) - absl::ToInt64Nanoseconds(kHeartbeatPeriod);
// Streams that ended during a pause are found broken within this time.
constexpr int64_t kRecentNs = 5'000'000'000;

}  // namespace

void PauseWatch::Expect(int64_t due_ns) {
  std::lock_guard lock(mutex_);
  due_ns_ = due_ns;
}

void PauseWatch::Tick(int64_t due_ns, int64_t now_ns) {
  std::lock_guard lock(mutex_);
  if (due_ns_ == due_ns) due_ns_ = 0;
  if (now_ns - due_ns < kPauseNs) return;
  paused_ns_ = now_ns - due_ns;
  resumed_ns_ = now_ns;
}

std::string PauseWatch::Recent(int64_t now_ns) const {
  std::lock_guard lock(mutex_);
  const int64_t late_ns = due_ns_ == 0 ? 0 : now_ns - due_ns_;
  int64_t paused_ns = 0;
  if (late_ns >= kPauseNs) {
    paused_ns = late_ns;
  } else if (now_ns - resumed_ns_ < kRecentNs) {
    paused_ns = paused_ns_;
  }
  if (paused_ns == 0) return "";
  return absl::StrFormat(
      "%s was paused for %.1f s (its process was stopped, or its host was suspended or overloaded)",
      node_, static_cast<double>(paused_ns) / 1e9);
}

int64_t PauseNanos() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace agmm
