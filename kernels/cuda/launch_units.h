// The launches of a rank's program. A unit is one step, or the products of a lane that one kernel
// computes: then the kernel waits for the operands of its later products, and may send some on.
#pragma once

#include <optional>
#include <vector>

#include "kernels/cuda/cuda_peer.h"
#include "kernels/cuda/kernel_steps.h"
#include "kernels/cuda/sm90/product_config.h"
#include "kernels/device/lower.h"

namespace agmm {

// A multiply in a launch: a part of a block's sum.
struct ProductPiece {
  int step = 0;
  std::vector<int> slots;  // of this rank, for which the kernel waits; at most sm90::kMaxWaits
  std::vector<int> sends;  // carried transfers; at most sm90::kMaxSends
};

// A tile pass: the pieces of one block of C.
struct ProductBlock {
  int first_piece = 0, pieces = 0;
  int first_tile = 0, tiles = 0;
};

struct ProductLaunch {
  sm90::ProductConfig config;
  std::vector<ProductBlock> blocks;
  std::vector<ProductPiece> pieces;
  int tiles = 0;
  // Waits for kernels of other ranks that send, or sends. Then it is submitted together with them
  // (launch_group.h), after all steps of its rank's other lanes.
  bool in_group = false;
};

struct LaunchUnit {
  int lane = 0;
  std::vector<int> steps;    // in the order of their lane; several only of products
  std::vector<Wait> waits;   // of all steps; they hold before it is submitted
  std::vector<Wait> events;  // those of them for which its stream waits
  std::optional<ProductLaunch> product;
};

struct LaunchUnits {
  std::vector<LaunchUnit> units;
  std::vector<std::vector<int>> lanes;  // units in order
  std::vector<int> unit_of_step;
  std::vector<bool> polled;  // by slot of this rank: a kernel waits for it
};

// Groups the steps of `rank`, which are in the order of plan.steps(). `steps`: as FindKernelSteps
// returns it.
LaunchUnits MakeLaunchUnits(const RankPlan& plan, const LoweredRank& rank,
                            const std::vector<CudaPeer>& peers,
                            const std::vector<KernelSteps>& steps);

}  // namespace agmm
