#include "daemon/link/usage.h"

#include <algorithm>

namespace agmm {

void SetUsage(const v1::NodeUsage& usage, v1::NodeStatus* node) {
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
