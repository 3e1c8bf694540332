#include "kernels/cuda/prepared.h"

#include <map>

#include "kernels/base/status.h"

namespace agmm {

absl::Status CudaPrepared::LostGpu() const {
  for (const std::shared_ptr<Gpu>& peer : peer_gpus) {
    if (peer == nullptr) continue;
    AGMM_RETURN_IF_ERROR(peer->lost());
  }
  return absl::OkStatus();
}

absl::Status CudaPrepared::Wait(CUstream stream, CUevent event) const {
  constexpr char kCall[] = "cuStreamWaitEvent";
  const CUresult result = gpu->driver().cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT);
  for (const std::shared_ptr<Gpu>& peer : peer_gpus) {
    if (FaultOf(result) == CudaFault::kLost && peer != nullptr && peer->Ask() != CUDA_SUCCESS)
      return peer->Failed(result, kCall);
  }
  return gpu->Check(result, kCall);
}

absl::Status CudaPrepared::Make(RankStreams& streams) {
  slots.emplace(program.slots);
  AGMM_RETURN_IF_ERROR(staging.Reserve(program.staged_bytes));
  for (size_t lane = 0; lane < program.lanes.size(); ++lane) {
    AGMM_ASSIGN_OR_RETURN(const CUstream stream,
                          streams.Lane(static_cast<int>(lane), program.multiplies[lane]));
    lanes.push_back(stream);
    CUdeviceptr workspace = 0;
    if (program.multiplies[lane]) {
      AGMM_ASSIGN_OR_RETURN(workspace, streams.Workspace(static_cast<int>(lane)));
    }
    workspaces.push_back(workspace);
    std::unique_ptr<GpuBytes>& chip = chips.emplace_back();
    if (program.chip_bytes[lane] > 0) {
      AGMM_ASSIGN_OR_RETURN(
          chip, GpuBytes::Create(gpu, program.chip_bytes[lane], "the sums of a plan's lane"));
    }
  }
  const OnGpu here(*gpu);
  std::map<int, GpuEvents*> events_of;  // by number of the other GPU
  for (const CudaStep& step : program.steps) {
    std::shared_ptr<const CudaProduct>& product = products.emplace_back();
    if (const auto* multiply = std::get_if<CudaMultiply>(&step.op)) {
      AGMM_ASSIGN_OR_RETURN(product, gpu->gemm().Get(multiply->shape));
    }
    for (StepEvents& set : step_events.emplace_back()) {
      AGMM_ASSIGN_OR_RETURN(set.begin, events.Make());
      AGMM_ASSIGN_OR_RETURN(set.end, events.Make());
    }
    std::vector<Through>& halves = through.emplace_back();
    const CudaCopy* const copy = step.copy();
    for (size_t i = 0; copy != nullptr && i < copy->to.size(); ++i) {
      if (copy->ways[i] != CudaCopy::Way::kThrough) continue;
      const std::shared_ptr<Gpu>& target = peer_gpus[copy->to[i].rank];
      GpuEvents*& made = events_of[target->number()];
      if (made == nullptr)
        made = through_events.emplace_back(std::make_unique<GpuEvents>(target)).get();
      Through half;
      half.to = static_cast<int>(i);
      AGMM_ASSIGN_OR_RETURN(half.stream, streams.Through(step.lane, target));
      for (CUevent& event : half.arrived) {
        AGMM_ASSIGN_OR_RETURN(event, made->Make());
      }
      halves.push_back(half);
    }
  }
  return absl::OkStatus();
}

}  // namespace agmm
