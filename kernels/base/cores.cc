#include "kernels/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace agmm {
namespace {

int CoresOfSet() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::thread::hardware_concurrency();  // more cores than fit the set
}

// The cgroup of this process. A container sees its own as the root.
std::string OwnGroup() {
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (absl::string_view own = line; absl::ConsumePrefix(&own, "0::")) return std::string(own);
  }
  return "";
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
  int least = 0;
  for (size_t end = group.size();; end = group.rfind('/', end - 1)) {
    std::ifstream file(root + group.substr(0, end) + "/cpu.max");
    std::string text;
    const int cores = std::getline(file, text) ? CoresOfQuota(text) : 0;
    if (cores > 0) least = least == 0 ? cores : std::min(least, cores);
    if (end == 0 || end == std::string::npos) return least;
  }
}

int UsableCores() {
  const int set = CoresOfSet(), quota = CoresOfGroup("/sys/fs/cgroup", OwnGroup());
  return std::max(1, quota == 0 ? set : std::min(set, quota));
}

}  // namespace agmm
