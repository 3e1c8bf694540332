#pragma once

#include <cstdint>
#include <string>

namespace agmm {

// Returns the bytes of memory that this process may use: the host's, or less if a cgroup limits it,
// as in a container.
int64_t UsableMemory();

// Returns the least memory limit of the process's cgroups and of their parents; 0 means no limit.
// `groups` is /proc/self/cgroup, `root` the folder where the hierarchies are mounted,
// /sys/fs/cgroup.
int64_t MemoryOfGroups(const std::string& groups, const std::string& root);

}  // namespace agmm
