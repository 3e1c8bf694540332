// The slots of a rank that kernels wait for: words of 64 bits in the memory of its GPU, which peers
// raise, too. The host sees the same slots as events (cuda_slots.h).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/mapped_bytes.h"

namespace agmm {

class SlotMemory {
 public:
  // All words are zero. Errors: RESOURCE_EXHAUSTED without memory; UNAVAILABLE if the GPU does not
  // write the zeros.
  static absl::StatusOr<std::unique_ptr<SlotMemory>> Create(std::shared_ptr<Gpu> gpu, int slots,
                                                            int counters);
  // As MappedBytes::MapFor.
  absl::Status MapFor(const Gpu& gpu) { return memory_->MapFor(gpu); }

  // A slot has the number of the epoch in which it was last raised.
  CUdeviceptr slot(int index) const { return memory_->address() + index * sizeof(uint64_t); }
  // A counter of 32 bits of the rank's own kernels, zero between launches.
  CUdeviceptr counter(int index) const { return slot(slots_) + index * sizeof(uint32_t); }

 private:
  SlotMemory(std::unique_ptr<MappedBytes> memory, int slots)
      : memory_(std::move(memory)), slots_(slots) {}

  const std::unique_ptr<MappedBytes> memory_;
  const int slots_;
};

}  // namespace agmm
