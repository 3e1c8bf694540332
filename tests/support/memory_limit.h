// A bound on the memory of a daemon under test, as on a small host or in a container.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace agmm {

// A prefix for a program's command (WorldOptions::hosts). It limits the program's allocations and
// its threads' stacks to `mib`; heaps of CPU devices are shared memory and do not count. If a
// daemon needs more, an allocation fails and the daemon ends.
inline std::vector<std::string> WithinMemory(int64_t mib) {
  return {"/usr/bin/prlimit", absl::StrCat("--data=", mib << 20)};
}

}  // namespace agmm
