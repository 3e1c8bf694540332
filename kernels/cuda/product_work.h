// Builds the arguments of a launch that computes products.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/launch_words.h"
#include "kernels/cuda/prepared.h"

namespace agmm {

// Queues the kernel of `unit`, which has products, on the stream of its lane. `trace`: a record for
// each tile in pinned memory; null: none. Errors: those of the driver.
absl::Status PutProducts(const CudaPrepared& prepared, const LaunchUnit& unit, uint64_t epoch,
                         const Operands& operands, const LaunchWords& words,
                         sm90::TileTrace* trace);

// The first begin and the last end of a block's tiles, by the GPU's clock; 0: not yet.
struct BlockTime {
  uint64_t start_ns = 0, end_ns = 0;
  bool waits = false;  // a tile has begun, and waits for its operands
};
// Reads the records of a launch, which may be running.
std::vector<BlockTime> BlockTimes(const ProductLaunch& launch, const sm90::TileTrace* trace);

}  // namespace agmm
