// Runs one rank's part of a plan on a CUDA device.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_queue.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/prepared.h"
#include "kernels/cuda/streams.h"
#include "kernels/device/executor.h"

namespace agmm {

// The parts of a device that its executors share.
struct CudaParts {
  CudaParts(std::shared_ptr<Gpu> gpu, bool cublaslt_only, bool trace_chunks)
      : gpu(gpu),
        cublaslt_only(cublaslt_only),
        trace_chunks(trace_chunks),
        streams(gpu),
        staging(std::move(gpu)) {}

  const std::shared_ptr<Gpu> gpu;
  const bool cublaslt_only, trace_chunks;  // as CudaDeviceOptions
  RankStreams streams;
  Staging staging;
  std::unique_ptr<CudaQueue> queue;  // last, because its thread uses all of the above
};

class CudaExecutor final : public EventExecutor {
 public:
  explicit CudaExecutor(CudaParts* device) : device_(device) {}
  // Cancels queued epochs and waits until they have drained. Must not be called from a
  // DoneCallback. Requires that the plan's other executors on this node have drained too, because
  // they wait for each other's events.
  ~CudaExecutor() override;

  absl::Status Prepare(const Problem& problem, std::shared_ptr<const Schedule> schedule,
                       const Peers& peers) override;
  int64_t size_bytes() const override;
  std::set<std::string> device_paths() const override;
  std::set<std::string> device_products() const override;
  void Run(uint64_t epoch, const Operands& operands, Deadline deadline, DoneCallback done) override;
  void Signal(int index, uint64_t epoch) override { Recorded(index, epoch, nullptr); }
  // Does nothing when no epoch is running or queued: an epoch that has ended stays as it ended.
  void Cancel(const absl::Status& reason) override { device_->queue->Cancel(&target_, reason); }
  void Observe(bool times, StateCallback done) override {
    device_->queue->Observe(&target_, times, std::move(done));
  }

  void Recorded(int index, uint64_t epoch, CUevent event) override;
  CUdeviceptr PolledSlot(int index) const override { return prepared_->PolledSlot(index); }
  const std::shared_ptr<Gpu>& gpu() const { return device_->gpu; }

 private:
  // Finds the other ranks of this node. Errors: INVALID_ARGUMENT for a rank of another kind.
  absl::StatusOr<CudaPeers> FindPeers(const RankPlan& plan) const;

  CudaParts* const device_;
  const std::shared_ptr<LaunchGroup> group_ = std::make_shared<LaunchGroup>();
  std::unique_ptr<const CudaPrepared> prepared_;
  std::vector<std::unique_ptr<CudaRun>> runs_;
  CudaEpochs::Target target_;
};

}  // namespace agmm
