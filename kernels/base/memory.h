// Work that may need more memory than there is and then fails alone, and memory that malloc keeps.
#pragma once

#include <cstddef>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/base/failpoint.h"

namespace agmm {

// Returns what `work` does, an absl::Status. `name` is a noun for it: "a plan of 960 hops". Errors,
// besides its own: RESOURCE_EXHAUSTED; then `work` has been left in the middle, and the caller
// drops what it was making.
template <typename Work>
absl::Status WithinMemory(absl::string_view name, Work work) {
  try {
    if (AGMM_FAILPOINT("memory.none")) throw std::bad_alloc();
    return work();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s needs more memory than the daemon can have; ask for fewer ranks or chunks, or give the "
        "daemon more memory (ulimit -v, memory.max of its cgroup)",
        name));
  }
}

// Returns the bytes that malloc has given out, without blocks of many MiB; 0 under sanitizers.
size_t AllocatedBytes();

// Gives freed memory back to the kernel if malloc keeps more than `least_bytes` of it.
void ReturnFreedMemory(size_t least_bytes = 0);

}  // namespace agmm
