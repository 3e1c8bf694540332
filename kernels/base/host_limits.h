// The cores and the memory that this process may use: the host's, or less if its cgroups (versions
// 1 and 2), taskset, cpusets or Slurm limit it, as in a container.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace agmm {

// At least one core.
int UsableCores();
// In bytes.
int64_t UsableMemory();

// The steps of both, for tests. `root` is the folder where the hierarchies are mounted,
// /sys/fs/cgroup, and `groups` is /proc/self/cgroup or a file like it. 0 means no limit.

// Returns the path of the process's group, such as "/user.slice", in the hierarchy of `controller`,
// for example "memory"; an empty controller stands for the hierarchy of version 2. Returns "" if
// the file does not name such a group. A container sees its own group as the root.
std::string GroupOf(const std::string& groups, absl::string_view controller);
// Returns the whole cores of a cgroup's cpu.max, "200000 100000" or "max 100000"; 0 also if it
// cannot be parsed.
int CoresOfQuota(absl::string_view cpu_max);
// Returns the least quota of `group` and of its parents.
int CoresOfGroup(const std::string& root, const std::string& group);
// Returns the least memory limit of the process's groups and of their parents.
int64_t MemoryOfGroups(const std::string& groups, const std::string& root);

}  // namespace agmm
