// The steps of a plan that the kernels of products compute (kernels/cuda/sm90): multiplies, and the
// transfers that the kernel of their carrier sends.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/cuda_peer.h"
#include "kernels/device/rank_plan.h"

namespace agmm {

// Vectors are by step of the rank.
struct KernelSteps {
  std::vector<bool> computed;        // a multiply that a kernel computes
  std::vector<std::string> refused;  // why cuBLASLt computes a multiply; empty for all other steps
  std::vector<bool> carried;         // a transfer that a kernel sends
};

// Returns the steps by rank: those of plan.peers.self, and if any transfer has a carrier, those of
// all ranks of this node. Sender and receiver must agree on what is carried, so each rank calls
// this with the same plan, and gets the same.
//
// `not_carried`: why transfers that have a carrier are copied all the same; empty if none is.
std::vector<KernelSteps> FindKernelSteps(const RankPlan& plan, const std::vector<CudaPeer>& peers,
                                         std::string* not_carried);

// Returns the ranks whose kernels send to each other, in order. `steps`: as FindKernelSteps returns
// it.
std::vector<Rank> RanksOfGroup(const Schedule& schedule, const std::vector<KernelSteps>& steps);

}  // namespace agmm
