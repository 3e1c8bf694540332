// The epochs queued on one rank: one first-in-first-out queue for all of its plans. An epoch begins
// once all steps of the epoch in front of it have been submitted; on the GPU its steps follow that
// epoch's end, but not those of relay lanes. Verify proves schedules for this order.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_run.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/gpu_clock.h"
#include "kernels/cuda/streams.h"
#include "kernels/device/epoch_queue.h"
#include "kernels/device/executor.h"

namespace agmm {

using CudaEpochs = EpochQueue<CudaRun>;

// Any thread may call the public methods except TakeTurn. Push, Cancel and Observe post to the
// GPU's thread.
class CudaQueue final : public GpuTenant {
 public:
  static absl::StatusOr<std::unique_ptr<CudaQueue>> Create(std::shared_ptr<Gpu> gpu);
  // Requires an empty queue.
  ~CudaQueue() override;

  // Returns a run for epochs of `prepared`, which outlives it, with words of this number.
  std::unique_ptr<CudaRun> MakeRun(const CudaPrepared& prepared, int words) const {
    return std::make_unique<CudaRun>(prepared, words, *clock_, inbox_);
  }
  void Push(CudaEpochs::Launch launch);
  // As Executor::Cancel and Executor::Observe.
  void Cancel(const CudaEpochs::Target* target, const absl::Status& reason);
  void Observe(const CudaEpochs::Target* target, bool times, Executor::StateCallback done);
  // Epochs that are over.
  int64_t epochs() const { return ended_; }

  Turn TakeTurn() override;

 private:
  explicit CudaQueue(const std::shared_ptr<Gpu>& gpu)
      : gpu_(gpu), events_(gpu), inbox_(std::make_shared<GpuInbox>(gpu->thread())) {}
  // Begins epochs and submits their steps. Returns true if anything was done.
  bool Advance();
  // Begins the next epoch, if one may begin.
  CudaEpochs::Launch* BeginNext();
  // Fails the launch's target if its run has failed.
  void PassFailure(const CudaEpochs::Launch& launch);
  // Reports the oldest launch in progress if it is over or stuck; returns true if it was.
  bool ReportOldest();
  // Gives up the GPUs that stuck work of the launch may write, and abandons the rank's runs.
  void GiveUp(const CudaEpochs::Launch& launch);
  // As EpochQueue::Report.
  void Report(CudaEpochs::Launch& launch);

  const std::shared_ptr<Gpu> gpu_;
  GpuEvents events_;
  std::unique_ptr<GpuStream> order_;  // joins the lanes at the end of an epoch
  std::unique_ptr<GpuClock> clock_;
  std::vector<CUevent> ends_;  // for the ends of epochs, in turn
  const std::shared_ptr<GpuInbox> inbox_;
  std::atomic<int64_t> ended_{0};

  // Used only by the GPU's thread.
  CudaEpochs epochs_{kMaxSubmittedEpochs};
  CUevent last_end_ = nullptr;  // of the last epoch that was closed; null: all are over
  uint64_t closed_ = 0;
  absl::Status stuck_;  // why the rank's streams will never continue
};

}  // namespace agmm
