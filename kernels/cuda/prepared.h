// The parts of a prepared plan that a rank keeps between epochs: its program, and the streams,
// events, memory and products that the program's steps use.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_program.h"
#include "kernels/cuda/cuda_slots.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/streams.h"

namespace agmm {

// The ranks of a plan as one of them sees them, by rank. Ranks of other nodes have neither heap
// nor GPU here.
struct CudaPeers {
  std::vector<CudaPeer> heaps;
  std::vector<std::shared_ptr<Gpu>> gpus;
};

// Constant, so any thread may read it, and its slots are thread-safe. Only the GPU's thread submits
// to its streams and records its events.
class CudaPrepared {
 public:
  // The events of a step in one epoch, before and after its work.
  struct StepEvents {
    CUevent begin = nullptr, end = nullptr;
  };
  // The second half of a copy through pinned memory.
  struct Through {
    int to = 0;  // index into CudaCopy::to
    GpuStream* stream = nullptr;
    std::array<CUevent, kEventSets> arrived{};
  };

  // `streams` and `staging` are the rank's, and outlive this. Requires plan.CheckPeers(). Errors:
  // those of LowerForCuda, RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<const CudaPrepared>> Create(std::shared_ptr<Gpu> gpu,
                                                                    RankStreams& streams,
                                                                    Staging& staging, RankPlan plan,
                                                                    CudaPeers peers);

  Gpu& gpu() const { return *gpu_; }
  const RankPlan& plan() const { return plan_; }
  const CudaProgram& program() const { return program_; }
  CudaSlots& slots() const { return *slots_; }
  Staging& staging() const { return staging_; }
  // By rank; null for ranks of other nodes.
  const std::vector<std::shared_ptr<Gpu>>& peer_gpus() const { return peers_.gpus; }
  CUdeviceptr heap(Rank rank) const { return peers_.heaps[rank].heap; }
  CUstream stream(int lane) const { return lanes_[lane].stream; }
  CUdeviceptr workspace(int lane) const { return lanes_[lane].workspace; }
  CUdeviceptr chip(int lane) const { return lanes_[lane].chip->address(); }
  // Requires a step that multiplies.
  const CudaProduct& product(int step) const { return *steps_[step].product; }
  const StepEvents& events(int step, uint64_t epoch) const {
    return steps_[step].events[epoch % kEventSets];
  }
  const std::vector<Through>& through(int step) const { return steps_[step].through; }

  // OK, or why a GPU of this node that runs a rank of the plan is lost.
  absl::Status LostGpu() const;
  // Makes a stream of one of these GPUs wait for an event of one of them. If the error is the loss
  // of one of them, it is recorded for that GPU.
  absl::Status Wait(CUstream stream, CUevent event) const;

 private:
  struct Lane {
    CUstream stream = nullptr;
    CUdeviceptr workspace = 0;       // of a lane that multiplies
    std::unique_ptr<GpuBytes> chip;  // of a lane that keeps sums on the GPU
  };
  struct Step {
    std::shared_ptr<const CudaProduct> product;
    std::array<StepEvents, kEventSets> events;
    std::vector<Through> through;
  };

  CudaPrepared(std::shared_ptr<Gpu> gpu, Staging& staging, RankPlan plan, CudaPeers peers,
               CudaProgram program);
  absl::Status MakeLanes(RankStreams& streams);
  absl::Status MakeSteps(RankStreams& streams);

  const std::shared_ptr<Gpu> gpu_;
  Staging& staging_;
  const RankPlan plan_;
  const CudaPeers peers_;
  const CudaProgram program_;
  const std::unique_ptr<CudaSlots> slots_;
  GpuEvents events_;
  std::vector<std::unique_ptr<GpuEvents>> through_events_;
  std::vector<Lane> lanes_;
  std::vector<Step> steps_;
};

}  // namespace agmm
