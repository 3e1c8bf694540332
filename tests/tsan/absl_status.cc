// Tells the thread sanitizer what the count of a status's owners orders: the last owner frees the
// status, and the sanitizer does not see how absl decrements the count. absl_locks.cc explains how
// these functions replace absl's.
#include <sanitizer/tsan_interface.h>

#include <cstdint>

#include "absl/status/status.h"
#include "tests/tsan/next.h"

namespace absl {
ABSL_NAMESPACE_BEGIN

void Status::UnrefNonInlined(uintptr_t rep) {
  static const auto theirs = Next(&Status::UnrefNonInlined);
  void* const count = &RepToPointer(rep)->ref;
  __tsan_release(count);
  __tsan_acquire(count);
  theirs(rep);
}

ABSL_NAMESPACE_END
}  // namespace absl
