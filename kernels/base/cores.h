#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace agmm {

// How many cores this process may use, one at least: taskset, cpusets and Slurm give fewer than the
// machine has, and a container's quota (of cgroups version 2) may be of less time than its cores
// have.
int UsableCores();

// Whole cores of a cgroup's cpu.max, "200000 100000" or "max 100000"; 0: no limit, or not such a
// text.
int CoresOfQuota(absl::string_view cpu_max);
// The least quota of `group`, such as "/user.slice", and of those around it, in the hierarchy
// mounted at `root`; 0: none.
int CoresOfGroup(const std::string& root, const std::string& group);

}  // namespace agmm
