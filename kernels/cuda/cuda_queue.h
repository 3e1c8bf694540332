// The epochs queued on one rank: one first-in-first-out queue for all of its plans. An epoch begins
// once all steps of the epoch in front of it have been submitted; on the GPU its steps follow that
// epoch's end, but not those of relay lanes. Verify proves schedules for this order.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/base/deadline.h"
#include "kernels/cuda/cuda_run.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/gpu_clock.h"
#include "kernels/cuda/streams.h"
#include "kernels/device/executor.h"
#include "kernels/device/queued_epoch.h"

namespace agmm {

// An executor as the queue sees it.
struct CudaTarget {
  const CudaPrepared* prepared = nullptr;  // null before Prepare
  absl::Status failure;  // why none of its epochs runs any more; for the GPU's thread only
  // Guarded by the queue.
  absl::Status cancelled;
  int unfinished = 0;  // launches whose end has not been decided
  int queued = 0;      // launches whose `done` has not returned
};

struct CudaLaunch : QueuedEpoch {
  CudaTarget* target = nullptr;
  std::unique_ptr<CudaRun> run = nullptr;  // of an epoch that has begun
};

class CudaQueue final : public GpuTenant {
 public:
  static absl::StatusOr<std::unique_ptr<CudaQueue>> Create(std::shared_ptr<Gpu> gpu);
  // Requires an empty queue.
  ~CudaQueue() override;

  void Push(CudaLaunch launch);
  // Fails the launches of `target` that are not over, if any.
  void Cancel(CudaTarget* target, const absl::Status& reason);
  // As Executor::Observe; on the GPU's thread.
  void Observe(const CudaTarget* target, bool times, Executor::StateCallback done);
  // Returns when no launch of `target` is left.
  void Drain(CudaTarget* target);
  // Epochs that are over.
  int64_t epochs() const;

  Turn TakeTurn() override;

 private:
  using Iterator = std::list<CudaLaunch>::iterator;
  struct Observer {
    const CudaTarget* target = nullptr;
    bool times = false;
    Executor::StateCallback done;
  };

  explicit CudaQueue(std::shared_ptr<Gpu> gpu) : gpu_(gpu), events_(std::move(gpu)) {}
  void TakeIn();
  // Fails launches that were cancelled, are late or belong to a failed target. Returns the next
  // deadline.
  Deadline FailDead();
  // Fails the launch's target: none of its epochs runs after this. The first reason stays.
  void Fail(CudaLaunch& launch, const absl::Status& status);
  // Begins epochs and advances them until they drain. Returns true if anything was done.
  bool Advance();
  // Returns true if a launch that has begun can be reported.
  bool IsOver(CudaLaunch& launch, int64_t now_ns);
  // Gives up the GPUs that stuck work of the plan may write, and abandons the rank's runs.
  void GiveUp(const CudaPrepared& prepared, const absl::Status& why);
  // Reports a launch that is over, if there is one.
  bool ReportOne();
  void Report(Iterator launch);
  void AnswerObservers();
  // The step that holds up the launch, or its wait in the queue.
  static std::string Stall(const CudaLaunch& launch);

  const std::shared_ptr<Gpu> gpu_;
  GpuEvents events_;
  std::unique_ptr<GpuStream> order_;  // joins the lanes at the end of an epoch
  std::unique_ptr<GpuClock> clock_;
  std::vector<CUevent> ends_;  // for the ends of epochs, in turn
  const std::shared_ptr<SendInbox> inbox_ = std::make_shared<SendInbox>();

  // Used only by the GPU's thread.
  std::list<CudaLaunch> launches_;
  CUevent last_end_ = nullptr;  // of the last epoch that was closed; null: all are over
  uint64_t closed_ = 0;
  absl::Status stuck_;  // why the rank's streams will never continue

  mutable std::mutex mutex_;  // guards all below, and parts of every CudaTarget
  std::condition_variable drained_;
  std::list<CudaLaunch> incoming_;
  std::vector<Observer> observers_;
  int64_t epochs_ = 0;
};

}  // namespace agmm
