#include "kernels/base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_split.h"

namespace agmm {

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

}  // namespace agmm
