// Work that may need more memory than there is, and then fails alone.
#pragma once

#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/base/failpoint.h"

namespace agmm {

// Returns what `work` does, an absl::Status. `name` is a noun for it: "a plan of 960 hops". Errors,
// besides its own: RESOURCE_EXHAUSTED; what it had allocated is free again.
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

}  // namespace agmm
