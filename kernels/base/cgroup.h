// Limits that the cgroups of this process set, versions 1 and 2.
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace agmm {

// Returns the path of the process's group, such as "/user.slice", in the hierarchy of `controller`,
// for example "memory"; an empty controller stands for the hierarchy of version 2. `groups` is
// /proc/self/cgroup or a file like it. Returns "" if the file does not name such a group. A
// container sees its own group as the root.
std::string GroupOf(const std::string& groups, absl::string_view controller);

// Returns the least limit in the files `name` of `group` and of its parents, in the hierarchy
// mounted at `root`; 0 means no limit. `limit_of` turns a file's first line into a limit, or into 0
// for none.
int64_t LeastLimit(const std::string& root, const std::string& group, const std::string& name,
                   absl::FunctionRef<int64_t(absl::string_view)> limit_of);

}  // namespace agmm
