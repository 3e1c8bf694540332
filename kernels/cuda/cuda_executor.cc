#include "kernels/cuda/cuda_executor.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/cuda/cuda_heap.h"

namespace agmm {

CudaExecutor::~CudaExecutor() {
  Cancel(absl::CancelledError("the plan's executor was destroyed"));
  target_.pending.Drain();
  // For the calls that free. If a group is open for too long, they may block.
  const QuietLaunches quiet;
  runs_.clear();
  prepared_.reset();
}

absl::Status CudaExecutor::Prepare(const Problem& problem, std::shared_ptr<const Schedule> schedule,
                                   const Peers& peers) {
  if (prepared_ != nullptr)
    return absl::FailedPreconditionError(
        "an executor is prepared once; make another for another plan");
  AGMM_RETURN_IF_ERROR(device_->gpu->health().given_up());
  RankPlan plan = {problem, std::move(schedule), peers};
  AGMM_RETURN_IF_ERROR(plan.CheckPeers());
  AGMM_ASSIGN_OR_RETURN(CudaPeers found, FindPeers(plan));
  AGMM_ASSIGN_OR_RETURN(CudaProgram program, LowerForCuda(plan, found.heaps));
  // From here on, calls of the driver may block.
  const QuietLaunches quiet;
  AGMM_RETURN_IF_ERROR(quiet.status());
  for (size_t rank = 0; rank < found.heaps.size(); ++rank) {
    if (found.heaps[rank].reachable)
      AGMM_RETURN_IF_ERROR(dynamic_cast<CudaHeap&>(*peers.heaps[rank]).MapFor(*device_->gpu));
  }
  AGMM_ASSIGN_OR_RETURN(
      prepared_,
      CudaPrepared::Create(device_->gpu, device_->streams, device_->staging, std::move(plan),
                           std::move(found), std::move(program), device_->trace_chunks));
  for (int i = 0; i < kMaxSubmittedEpochs; ++i) {
    runs_.push_back(device_->queue->MakeRun(*prepared_, i));
    target_.idle.push_back(runs_.back().get());
  }
  target_.rank = prepared_->plan().WorldRank(peers.self);
  target_.failure = absl::OkStatus();
  return absl::OkStatus();
}

absl::StatusOr<CudaPeers> CudaExecutor::FindPeers(const RankPlan& plan) const {
  const Peers& peers = plan.peers;
  CudaPeers found;
  for (size_t rank = 0; rank < peers.heaps.size(); ++rank) {
    CudaPeer& peer = found.heaps.emplace_back();
    std::shared_ptr<Gpu>& gpu = found.gpus.emplace_back();
    found.groups.emplace_back();
    if (!plan.IsLocal(static_cast<Rank>(rank))) continue;
    auto* const heap = dynamic_cast<CudaHeap*>(peers.heaps[rank]);
    const auto* const executor = dynamic_cast<CudaExecutor*>(peers.executors[rank]);
    if (heap == nullptr || executor == nullptr) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "rank %d is not a CUDA device and rank %d is one; give a mesh ranks of one kind",
          plan.WorldRank(static_cast<Rank>(rank)), plan.WorldRank(peers.self)));
    }
    peer.heap = heap->address();
    gpu = executor->gpu();
    found.groups.back() = executor->group_;
    AGMM_RETURN_IF_ERROR(gpu->health().given_up());
    peer.gpu = gpu->number();
    peer.reachable = device_->gpu->topology().AreConnected(device_->gpu->number(), peer.gpu);
    peer.island = gpu->topology().island(peer.gpu);
    peer.sms = executor->device_->cublaslt_only || gpu->products() == nullptr ? 0 : gpu->sms();
    peer.clusters = peer.sms > 0 ? gpu->products()->most_clusters() : 0;
    peer.tenants = gpu->thread().tenant_count();
    peer.reaches_all = gpu->topology().ReachesAll(peer.gpu);
  }
  return found;
}

int64_t CudaExecutor::size_bytes() const {
  if (prepared_ == nullptr) return 0;
  int64_t bytes = SizeBytes(prepared_->program());
  for (const std::unique_ptr<CudaRun>& run : runs_) bytes += run->size_bytes();
  return bytes;
}

std::set<std::string> CudaExecutor::device_paths() const {
  return prepared_ == nullptr ? std::set<std::string>() : prepared_->program().paths;
}

std::set<std::string> CudaExecutor::device_products() const {
  return prepared_ == nullptr ? std::set<std::string>() : prepared_->program().products;
}

void CudaExecutor::Run(uint64_t epoch, const Operands& operands, Deadline deadline,
                       DoneCallback done) {
  device_->queue->Push({&target_, epoch, operands, deadline, std::move(done)});
}

void CudaExecutor::Recorded(int index, uint64_t epoch, CUevent event) {
  prepared_->slots().Raise(index, epoch, event);
  device_->gpu->thread().Wake();
}

}  // namespace agmm
