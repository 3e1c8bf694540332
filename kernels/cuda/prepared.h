// All that a rank of a prepared plan keeps between its epochs: its program, and the streams,
// events, memory and products that the program's steps use.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/cuda_program.h"
#include "kernels/cuda/cuda_slots.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/streams.h"

namespace agmm {

struct CudaPrepared {
  // The events of a step in one epoch: in front of its work and behind it.
  struct StepEvents {
    CUevent begin = nullptr, end = nullptr;
  };
  // The second half of a copy through pinned memory.
  struct Through {
    int to = 0;  // index into CudaCopy::to
    GpuStream* stream = nullptr;
    std::array<CUevent, kEventSets> arrived{};
  };

  CudaPrepared(std::shared_ptr<Gpu> gpu, Staging& staging)
      : gpu(gpu), staging(staging), events(std::move(gpu)) {}
  // After `plan`, `peers`, `peer_gpus` and `program` are set. Errors: RESOURCE_EXHAUSTED.
  absl::Status Make(RankStreams& streams);

  // OK, or why a GPU of this node that the plan has a rank on is lost.
  absl::Status LostGpu() const;
  // The time that all work may take which may lie in front of an epoch's.
  int64_t BegunNs() const { return Gpu::begun_ns(); }
  // Makes a stream wait for an event, each of any of these GPUs. An error that is the loss of one
  // of them counts as that one's.
  absl::Status Wait(CUstream stream, CUevent event) const;

  const std::shared_ptr<Gpu> gpu;
  Staging& staging;
  RankPlan plan;
  std::vector<CudaPeer> peers;                  // by rank
  std::vector<std::shared_ptr<Gpu>> peer_gpus;  // by rank; null on other nodes
  CudaProgram program;
  std::optional<CudaSlots> slots;

  std::vector<CUstream> lanes;
  std::vector<CUdeviceptr> workspaces;                       // by lane
  std::vector<std::unique_ptr<GpuBytes>> chips;              // by lane
  std::vector<std::shared_ptr<const CudaProduct>> products;  // by step
  std::vector<std::array<StepEvents, kEventSets>> step_events;
  std::vector<std::vector<Through>> through;  // by step

 private:
  GpuEvents events;
  std::vector<std::unique_ptr<GpuEvents>> through_events;
};

}  // namespace agmm
