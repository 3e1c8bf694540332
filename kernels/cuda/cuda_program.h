// One rank's part of a schedule in the form that its GPU runs: each copy's path and each sum's
// place are chosen. Pure, and immutable while epochs run.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_peer.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch_units.h"
#include "kernels/device/lower.h"

namespace agmm {

struct CudaCopy : CopyOp {
  enum class Way {
    kDirect,   // on the lane
    kThrough,  // to pinned memory on the lane, and from there on a stream of the other GPU
    kSend,     // to pinned memory on the lane, and from there by a message
  };
  std::vector<Way> ways;  // by index into `to`
  int64_t row_bytes = 0;
  int64_t staged_bytes = 0;  // of pinned memory; 0: all are direct
};

struct CudaMultiply : MultiplyOp {
  // The place where the product is made.
  enum class Sum {
    kOut,
    kAcc,
    kChip,  // the lane's own memory, where sums stay between multiplies
  } sum = Sum::kOut;
  bool load = false;     // copies `acc` to the sum first
  bool convert = false;  // converts the sum to `out` afterwards
  ProductShape shape;
};

struct CudaStep : StepEdges {
  std::variant<CudaCopy, CudaMultiply, ReduceOp, Join> op;

  const CudaCopy* copy() const { return std::get_if<CudaCopy>(&op); }
  // Returns true if part of it goes that way.
  bool goes(size_t part, CudaCopy::Way way) const {
    return copy() != nullptr && part < copy()->ways.size() && copy()->ways[part] == way;
  }
  // Returns true if messages follow the end of its work on the GPU.
  bool has_messages() const;
};

struct CudaProgram {
  std::vector<CudaStep> steps;
  std::vector<LaunchUnit> units;
  std::vector<std::vector<int>> lanes;  // units in order
  std::vector<int> unit_of_step;        // of a carried transfer: that of its carrier
  std::vector<Rank> group;              // whose kernels send to each other, this rank's among them
  std::vector<bool> polled;             // by slot: a kernel waits for it in the GPU's memory
  std::vector<int64_t> chip_bytes;      // by lane
  std::vector<bool> multiplies;         // by lane
  std::vector<bool> relays;             // by lane; see RelayLanes
  // By lane: true if its first step has to wait for the rank's last epoch. This is not necessary if
  // it waits for a step of another lane that follows that epoch.
  std::vector<bool> begins;
  int64_t staged_bytes = 0;  // of the largest copy
  // Time of an epoch's work, step by step at 1 TFLOP/s and 1 GB/s, so a bound for any GPU.
  int64_t longest_ns = 0;
  int slots = 0;
  std::set<std::string> paths;     // as Executor::device_paths
  std::set<std::string> products;  // as Executor::device_products
};

int64_t SizeBytes(const CudaProgram& program);

// Returns the distance between rows of a sum on chip.
int64_t ChipPitchBytes(int64_t n);

// Lowers the steps of `plan`; `peers` by rank. Errors: those of LowerRank, and INVALID_ARGUMENT for
// a read of memory that the GPU cannot load.
absl::StatusOr<CudaProgram> LowerForCuda(const RankPlan& plan, const std::vector<CudaPeer>& peers);

}  // namespace agmm
