#include "kernels/base/host_limits.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace agmm {
namespace {

// Returns the least limit in the files `name` of `group` and of its parents. `limit_of` turns a
// file's first line into a limit.
int64_t LeastLimit(const std::string& root, const std::string& group, const std::string& name,
                   absl::FunctionRef<int64_t(absl::string_view)> limit_of) {
  int64_t least = 0;
  for (size_t end = group.size();; end = group.rfind('/', end - 1)) {
    std::ifstream file(root + group.substr(0, end) + "/" + name);
    std::string text;
    const int64_t limit = std::getline(file, text) ? limit_of(text) : 0;
    if (limit > 0) least = least == 0 ? limit : std::min(least, limit);
    if (end == 0 || end == std::string::npos) return least;
  }
}

int CoresOfSet() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::thread::hardware_concurrency();  // there are more cores than fit into the set
}

// Returns 0 for "max", version 2's word for no limit.
int64_t BytesOf(absl::string_view text) {
  int64_t bytes = 0;
  return absl::SimpleAtoi(text, &bytes) ? bytes : 0;
}

}  // namespace

std::string GroupOf(const std::string& groups, absl::string_view controller) {
  std::ifstream file(groups);
  for (std::string line; std::getline(file, line);) {
    // "4:cpu,cpuacct:/user.slice", or "0::/user.slice" for version 2.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::vector<absl::string_view> controllers = absl::StrSplit(parts[1], ',');
    if (absl::c_linear_search(controllers, controller)) return parts[2];
  }
  return "";
}

int CoresOfQuota(absl::string_view cpu_max) {
  const std::vector<absl::string_view> words = absl::StrSplit(cpu_max, ' ', absl::SkipWhitespace());
  int64_t quota = 0, period = 0;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &quota) ||
      !absl::SimpleAtoi(words[1], &period) || quota <= 0 || period <= 0)
    return 0;
  return static_cast<int>(std::clamp<int64_t>(quota / period, 1, 1 << 20));
}

int CoresOfGroup(const std::string& root, const std::string& group) {
  return static_cast<int>(LeastLimit(root, group, "cpu.max", CoresOfQuota));
}

int UsableCores() {
  const int set = CoresOfSet();
  const int quota = CoresOfGroup("/sys/fs/cgroup", GroupOf("/proc/self/cgroup", ""));
  return std::max(1, quota == 0 ? set : std::min(set, quota));
}

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
