#include "kernels/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "kernels/base/cgroup.h"

namespace agmm {
namespace {

int CoresOfSet() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::thread::hardware_concurrency();  // there are more cores than fit into the set
}

}  // namespace

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

}  // namespace agmm
