// The parts of a prepared plan that a rank keeps between epochs: its program, and the streams,
// events, memory and products that the program's steps use.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_program.h"
#include "kernels/cuda/cuda_slots.h"
#include "kernels/cuda/launch_group.h"
#include "kernels/cuda/launch_words.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/slot_memory.h"
#include "kernels/cuda/streams.h"

namespace agmm {

// The ranks of a plan as one of them sees them, by rank. Ranks of other nodes have neither heap
// nor GPU here.
struct CudaPeers {
  std::vector<CudaPeer> heaps;
  std::vector<std::shared_ptr<Gpu>> gpus;
  // The group of its plan, if this is the first rank of CudaProgram::group; else not used.
  std::vector<std::shared_ptr<LaunchGroup>> groups;
};

// Constant, so any thread may read it, and its slots are thread-safe. Only the GPU's thread submits
// to its streams and records its events.
class CudaPrepared {
 public:
  // The events of a unit in one epoch, before and after its work.
  struct UnitEvents {
    CUevent begin = nullptr, end = nullptr;
  };
  // The second half of a copy through pinned memory.
  struct Through {
    int to = 0;  // index into CudaCopy::to
    GpuStream* stream = nullptr;
    std::array<CUevent, kEventSets> arrived{};
  };

  // `streams` and `staging` are the rank's, and outlive this. `program`: the plan's, by
  // LowerForCuda. Requires plan.CheckPeers(). Errors: RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::unique_ptr<const CudaPrepared>> Create(
      std::shared_ptr<Gpu> gpu, RankStreams& streams, Staging& staging, RankPlan plan,
      CudaPeers peers, CudaProgram program, bool trace_chunks);

  Gpu& gpu() const { return *gpu_; }
  const RankPlan& plan() const { return plan_; }
  const CudaProgram& program() const { return program_; }
  CudaSlots& slots() const { return *slots_; }
  Staging& staging() const { return staging_; }
  // By rank; null for ranks of other nodes.
  const std::vector<std::shared_ptr<Gpu>>& peer_gpus() const { return peers_.gpus; }
  CUdeviceptr heap(Rank rank) const { return peers_.heaps[rank].heap; }
  const LaunchUnit& UnitOf(int step) const { return program_.units[program_.unit_of_step[step]]; }
  CUstream stream(int lane) const { return lanes_[lane].stream; }
  CUdeviceptr workspace(int lane) const { return lanes_[lane].workspace; }
  CUdeviceptr chip(int lane) const { return lanes_[lane].chip->address(); }
  // Requires a step that multiplies.
  const CudaProduct& product(int step) const { return *steps_[step].product; }
  const UnitEvents& events(int unit, uint64_t epoch) const {
    return units_[unit][epoch % kEventSets];
  }
  const std::vector<Through>& through(int step) const { return steps_[step].through; }

  // The words of the run with this number, below kMaxSubmittedEpochs.
  LaunchWords words(int run) const {
    return LaunchWords(words_->data() + run * LaunchWords::kBytes);
  }
  // Requires that a kernel of this rank waits for a slot, or sends.
  const SlotMemory& slot_memory() const { return *slot_memory_; }
  // As EventExecutor::PolledSlot.
  CUdeviceptr PolledSlot(int index) const {
    return program_.polled[index] ? slot_memory_->slot(index) : 0;
  }
  // The records of a unit's tiles; null unless the device traces chunks and the unit has products.
  sm90::TileTrace* trace(int unit, uint64_t epoch) const {
    if (traces_[unit] == nullptr) return nullptr;
    return reinterpret_cast<sm90::TileTrace*>(traces_[unit]->data()) +
           epoch % kEventSets * program_.units[unit].product->tiles;
  }
  // Requires program().group.
  LaunchGroup& group() const { return *peers_.groups[program_.group[0]]; }
  // Requires a carried transfer.
  CUdeviceptr counter(int step) const { return slot_memory_->counter(counters_.at(step)); }

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
    std::vector<Through> through;
  };

  CudaPrepared(std::shared_ptr<Gpu> gpu, Staging& staging, RankPlan plan, CudaPeers peers,
               CudaProgram program);
  absl::Status MakeLanes(RankStreams& streams);
  absl::Status MakeWords();
  absl::Status MakeTraces();
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
  std::vector<std::array<UnitEvents, kEventSets>> units_;
  std::unique_ptr<PinnedBytes> words_;
  std::unique_ptr<SlotMemory> slot_memory_;  // null if no kernel of this rank waits or sends
  std::map<int, int> counters_;              // in slot_memory_, by carried transfer
  std::vector<std::unique_ptr<PinnedBytes>> traces_;  // by unit
};

}  // namespace agmm
