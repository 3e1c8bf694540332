// Memory use of a node's devices, reported with heartbeats.
#pragma once

#include <algorithm>

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/peer.pb.h"

namespace agmm {

// Copies `usage` into the node's status.
inline void SetUsage(const v1::NodeUsage& usage, v1::NodeStatus* node) {
  node->set_staging_bytes(usage.staging_bytes());
  node->set_plan_bytes(usage.plan_bytes());
  for (int i = 0; i < std::min(usage.devices_size(), node->devices_size()); ++i) {
    const v1::DeviceUsage& from = usage.devices(i);
    v1::DeviceStatus* to = node->mutable_devices(i);
    to->set_packed_bytes(from.packed_bytes());
    to->set_scratch_bytes(from.scratch_bytes());
    to->set_pack_count(from.pack_count());
    to->set_allocation_count(from.allocation_count());
    to->set_failure(from.failure());
  }
}

}  // namespace agmm
