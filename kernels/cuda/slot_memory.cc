#include "kernels/cuda/slot_memory.h"

#include <utility>

#include "kernels/base/status.h"
#include "kernels/cuda/streams.h"

namespace agmm {

absl::StatusOr<std::unique_ptr<SlotMemory>> SlotMemory::Create(std::shared_ptr<Gpu> gpu, int slots,
                                                               int counters) {
  const auto bytes = static_cast<int64_t>(slots * sizeof(uint64_t) + counters * sizeof(uint32_t));
  AGMM_ASSIGN_OR_RETURN(auto mapped, MappedBytes::Create(gpu, bytes));
  std::unique_ptr<SlotMemory> memory(new SlotMemory(std::move(mapped), slots));
  AGMM_ASSIGN_OR_RETURN(const auto stream, GpuStream::Create(gpu));
  GpuEvents events(gpu);
  AGMM_ASSIGN_OR_RETURN(const CUevent zeroed, events.Make());
  const OnGpu here(*gpu);
  AGMM_CUDA_RETURN(*gpu, cuMemsetD8Async, memory->slot(0), 0, bytes, stream->get());
  AGMM_CUDA_RETURN(*gpu, cuEventRecord, zeroed, stream->get());
  AGMM_RETURN_IF_ERROR(gpu->Await(zeroed, bytes, "the zeroing of slots"));
  return memory;
}

}  // namespace agmm
