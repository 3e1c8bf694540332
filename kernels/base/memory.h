// Work that fails with an error, and without ending the process, if memory runs out; and memory
// that malloc keeps.
#pragma once

#include <cstddef>
#include <new>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/base/failpoint.h"

namespace agmm {

// Returns the absl::Status that `work` returns. `name` is a noun for the work: "a plan of 960
// hops". Errors, besides those of `work`: RESOURCE_EXHAUSTED if memory ran out in the middle of
// `work`; the caller then drops the unfinished result.
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
