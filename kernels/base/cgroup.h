// Limits that the cgroups of this process set, versions 1 and 2.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace agmm {

// The path of the process's group, such as "/user.slice", in the hierarchy of `controller`, for
// example "memory"; empty: that of version 2. `groups` is /proc/self/cgroup or a file like it.
// Empty where the file names no such group. A container sees its own group as the root.
std::string GroupOf(const std::string& groups, absl::string_view controller);

// The least limit that the files `name` of `group` and of its parents give, in the hierarchy
// mounted at `root`; 0: no limit. `limit_of` turns a file's first line into a limit, or into 0 for
// none.
int64_t LeastLimit(const std::string& root, const std::string& group, const std::string& name,
                   absl::FunctionRef<int64_t(absl::string_view)> limit_of);

}  // namespace agmm
