// Memory use of a node's devices, reported with heartbeats.
#pragma once

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/peer.pb.h"

namespace agmm {

// Copies `usage` into the node's status.
void SetUsage(const v1::NodeUsage& usage, v1::NodeStatus* node);

}  // namespace agmm
