#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace agmm {

// The number of cores that this process may use, at least one. taskset, cpusets and Slurm restrict
// the cores; the quota of a container (cgroups version 2) restricts their time.
int UsableCores();

// Returns the whole cores of a cgroup's cpu.max, "200000 100000" or "max 100000"; 0 if it sets no
// limit or cannot be parsed.
int CoresOfQuota(absl::string_view cpu_max);
// Returns the least quota of `group`, such as "/user.slice", and of its parents in the hierarchy
// mounted at `root`; 0 means no quota.
int CoresOfGroup(const std::string& root, const std::string& group);

}  // namespace agmm
