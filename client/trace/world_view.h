// The nodes and ranks of a world, as its status reports them. Pure.
#pragma once

#include "agmm/v1/cluster.pb.h"
#include "kernels/schedule/topology.h"
#include "proto/convert/wait_chain.h"

namespace agmm {

// Names nodes as the status does; "node 3" where it does not.
NodeNameFn NamesOf(const v1::GetStatusResponse& status);

// Returns the node and the island of each world rank.
Topology TopologyOfWorld(const v1::GetStatusResponse& status);

}  // namespace agmm
