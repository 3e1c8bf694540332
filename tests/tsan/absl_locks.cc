// Tells the thread sanitizer what absl's locks order. gRPC passes our objects from thread to thread
// under these locks, and the distribution builds neither gRPC nor absl for the sanitizer. Without
// this file, every access in a callback would look like a race. These functions are linked before
// absl, so that all callers, gRPC too, call them instead of absl's; they call absl's in turn. Used
// only in builds with AGMM_SANITIZE=thread.
#include <sanitizer/tsan_interface.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "tests/tsan/next.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto theirs = Next(&Mutex::Lock);
  (this->*theirs)();
  __tsan_acquire(this);
}

bool Mutex::TryLock() {
  static const auto theirs = Next(&Mutex::TryLock);
  const bool locked = (this->*theirs)();
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::Unlock() {
  static const auto theirs = Next(&Mutex::Unlock);
  __tsan_release(this);
  (this->*theirs)();
}

void CondVar::Wait(Mutex* mutex) {
  static const auto theirs = Next(&CondVar::Wait);
  __tsan_release(mutex);
  (this->*theirs)(mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto theirs = Next(&CondVar::WaitWithTimeout);
  __tsan_release(mutex);
  const bool late = (this->*theirs)(mutex, timeout);
  __tsan_acquire(mutex);
  return late;
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto theirs = Next(&CondVar::WaitWithDeadline);
  __tsan_release(mutex);
  const bool late = (this->*theirs)(mutex, deadline);
  __tsan_acquire(mutex);
  return late;
}

ABSL_NAMESPACE_END
}  // namespace absl
