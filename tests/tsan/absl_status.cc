// Tells the thread sanitizer what the count of a status's owners orders: the last one frees it, and
// absl counts down where the sanitizer does not see it. See absl_locks.cc for how this comes before
// absl's own.
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
