// A bound on the memory of a daemon under test, as a small host or a container has one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace agmm {

// Goes in front of a program's command (WorldOptions::hosts). What the program allocates, with its
// threads' stacks, is then at most `mib`; heaps of CPU devices are shared memory and do not count.
// A daemon that wants more fails an allocation and ends.
inline std::vector<std::string> WithinMemory(int64_t mib) {
  return {"/usr/bin/prlimit", absl::StrCat("--data=", mib << 20)};
}

}  // namespace agmm
