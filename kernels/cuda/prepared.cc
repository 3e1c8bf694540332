#include "kernels/cuda/prepared.h"

#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "kernels/base/status.h"

namespace agmm {

CudaPrepared::CudaPrepared(std::shared_ptr<Gpu> gpu, Staging& staging, RankPlan plan,
                           CudaPeers peers, CudaProgram program)
    : gpu_(gpu),
      staging_(staging),
      plan_(std::move(plan)),
      peers_(std::move(peers)),
      program_(std::move(program)),
      slots_(std::make_unique<CudaSlots>(program_.slots)),
      events_(std::move(gpu)) {}

absl::StatusOr<std::unique_ptr<const CudaPrepared>> CudaPrepared::Create(
    std::shared_ptr<Gpu> gpu, RankStreams& streams, Staging& staging, RankPlan plan,
    CudaPeers peers, CudaProgram program, bool trace_chunks) {
  AGMM_RETURN_IF_ERROR(staging.Reserve(program.staged_bytes));
  std::unique_ptr<CudaPrepared> prepared(new CudaPrepared(std::move(gpu), staging, std::move(plan),
                                                          std::move(peers), std::move(program)));
  AGMM_RETURN_IF_ERROR(prepared->MakeLanes(streams));
  AGMM_RETURN_IF_ERROR(prepared->MakeWords());
  prepared->traces_.resize(prepared->program_.units.size());
  if (trace_chunks) AGMM_RETURN_IF_ERROR(prepared->MakeTraces());
  AGMM_RETURN_IF_ERROR(prepared->MakeSteps(streams));
  if (!prepared->program_.group.empty())
    prepared->group().Join([gpu = prepared->gpu_] { gpu->thread().Wake(); });
  return prepared;
}

absl::Status CudaPrepared::MakeLanes(RankStreams& streams) {
  for (size_t i = 0; i < program_.lanes.size(); ++i) {
    const int index = static_cast<int>(i);
    Lane& lane = lanes_.emplace_back();
    if (program_.lanes[i].empty()) continue;  // kernels send all of its transfers
    AGMM_ASSIGN_OR_RETURN(lane.stream, streams.Lane(index, program_.multiplies[i]));
    if (program_.multiplies[i]) {
      AGMM_ASSIGN_OR_RETURN(lane.workspace, streams.Workspace(index));
    }
    if (program_.chip_bytes[i] > 0) {
      AGMM_ASSIGN_OR_RETURN(
          lane.chip, GpuBytes::Create(gpu_, program_.chip_bytes[i], "the sums of a plan's lane"));
    }
  }
  return absl::OkStatus();
}

absl::Status CudaPrepared::MakeWords() {
  AGMM_ASSIGN_OR_RETURN(words_,
                        PinnedBytes::Create(gpu_, kMaxSubmittedEpochs * LaunchWords::kBytes));
  for (const LaunchUnit& unit : program_.units) {
    if (!unit.product.has_value()) continue;
    for (const ProductPiece& piece : unit.product->pieces) {
      for (const int send : piece.sends)
        counters_.emplace(send, static_cast<int>(counters_.size()));
    }
  }
  if (counters_.empty() && absl::c_none_of(program_.polled, [](bool polled) { return polled; }))
    return absl::OkStatus();
  AGMM_ASSIGN_OR_RETURN(
      slot_memory_, SlotMemory::Create(gpu_, program_.slots, static_cast<int>(counters_.size())));
  for (const std::shared_ptr<Gpu>& peer : peers_.gpus) {
    if (peer != nullptr && gpu_->topology().AreConnected(gpu_->number(), peer->number()))
      AGMM_RETURN_IF_ERROR(slot_memory_->MapFor(*peer));
  }
  return absl::OkStatus();
}

absl::Status CudaPrepared::MakeTraces() {
  for (size_t unit = 0; unit < traces_.size(); ++unit) {
    const auto& product = program_.units[unit].product;
    if (!product.has_value()) continue;
    const auto bytes = static_cast<int64_t>(kEventSets * product->tiles * sizeof(sm90::TileTrace));
    AGMM_ASSIGN_OR_RETURN(traces_[unit], PinnedBytes::Create(gpu_, bytes));
  }
  return absl::OkStatus();
}

absl::Status CudaPrepared::MakeSteps(RankStreams& streams) {
  const OnGpu here(*gpu_);
  units_.resize(program_.units.size());
  for (std::array<UnitEvents, kEventSets>& sets : units_) {
    for (UnitEvents& set : sets) {
      AGMM_ASSIGN_OR_RETURN(set.begin, events_.Make());
      AGMM_ASSIGN_OR_RETURN(set.end, events_.Make());
    }
  }
  std::map<int, GpuEvents*> events_of;  // by number of the other GPU
  for (const CudaStep& made : program_.steps) {
    Step& step = steps_.emplace_back();
    const auto* const multiply = std::get_if<CudaMultiply>(&made.op);
    const size_t index = steps_.size() - 1;
    if (multiply != nullptr && !UnitOf(static_cast<int>(index)).product.has_value()) {
      AGMM_ASSIGN_OR_RETURN(step.product, gpu_->gemm().Get(multiply->shape));
    }
    const CudaCopy* const copy = made.copy();
    for (size_t i = 0; copy != nullptr && i < copy->to.size(); ++i) {
      if (copy->ways[i] != CudaCopy::Way::kThrough) continue;
      const std::shared_ptr<Gpu>& target = peers_.gpus[copy->to[i].rank];
      GpuEvents*& events = events_of[target->number()];
      if (events == nullptr)
        events = through_events_.emplace_back(std::make_unique<GpuEvents>(target)).get();
      Through half;
      half.to = static_cast<int>(i);
      AGMM_ASSIGN_OR_RETURN(half.stream, streams.Through(made.lane, target));
      for (CUevent& event : half.arrived) {
        AGMM_ASSIGN_OR_RETURN(event, events->Make());
      }
      step.through.push_back(half);
    }
  }
  return absl::OkStatus();
}

absl::Status CudaPrepared::LostGpu() const {
  for (const std::shared_ptr<Gpu>& peer : peers_.gpus) {
    if (peer == nullptr) continue;
    AGMM_RETURN_IF_ERROR(peer->health().lost());
  }
  return absl::OkStatus();
}

absl::Status CudaPrepared::Wait(CUstream stream, CUevent event) const {
  constexpr char kCall[] = "cuStreamWaitEvent";
  const CUresult result = gpu_->driver().cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_DEFAULT);
  for (const std::shared_ptr<Gpu>& peer : peers_.gpus) {
    if (FaultOf(result) == CudaFault::kLost && peer != nullptr && peer->Ask() != CUDA_SUCCESS)
      return peer->Failed(result, kCall);
  }
  return gpu_->Check(result, kCall);
}

}  // namespace agmm
