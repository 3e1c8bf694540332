#include "kernels/base/usable_memory.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "kernels/base/cgroup.h"

namespace agmm {
namespace {

// Returns 0 for "max", version 2's word for no limit.
int64_t BytesOf(absl::string_view text) {
  int64_t bytes = 0;
  return absl::SimpleAtoi(text, &bytes) ? bytes : 0;
}

}  // namespace

int64_t MemoryOfGroups(const std::string& groups, const std::string& root) {
  const int64_t now = LeastLimit(root, GroupOf(groups, ""), "memory.max", BytesOf);
  const int64_t before =
      LeastLimit(root + "/memory", GroupOf(groups, "memory"), "memory.limit_in_bytes", BytesOf);
  return now == 0 || before == 0 ? std::max(now, before) : std::min(now, before);
}

int64_t UsableMemory() {
  const int64_t host = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const int64_t groups = MemoryOfGroups("/proc/self/cgroup", "/sys/fs/cgroup");
  return groups == 0 ? host : std::min(host, groups);
}

}  // namespace agmm
