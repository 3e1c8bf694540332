// The resources of a daemon: its process and the world's memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <ostream>
#include <string>

#include "agmm/v1/cluster.pb.h"
#include "tests/e2e/world.h"

namespace agmm {

// Returns the value of a line of /proc/PID/status, such as "Threads" or "VmRSS" (KiB).
int64_t ProcessField(pid_t pid, const std::string& field);

struct Usage {
  int descriptors = 0;
  int64_t threads = 0;
  int64_t tensor_bytes = 0;     // of all nodes
  int64_t workspace_bytes = 0;  // of the device that has most
  int64_t staging_bytes = 0;
  bool operator==(const Usage&) const = default;
};
Usage UsageOf(World& world, int node);
void PrintTo(const Usage& usage, std::ostream* out);

// The sum over all devices.
int64_t TensorBytes(const v1::GetStatusResponse& status);

}  // namespace agmm
