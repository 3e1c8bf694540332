// The workers of one device, which run the tasks of its epochs. An epoch begins when the earlier
// epoch in progress is over and its `done` has returned. An epoch that will never begin is reported
// without waiting for the epochs in front of it. Verify proves schedules for this launch order.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "kernels/base/deadline.h"
#include "kernels/cpu/rank_run.h"
#include "kernels/device/epoch_queue.h"
#include "kernels/device/executor.h"

namespace agmm {

using CpuEpochs = EpochQueue<RankRun>;

class CpuWorkers {
 public:
  CpuWorkers(std::shared_ptr<Monitor> monitor, int threads);
  // Waits for the workers. Requires an empty queue.
  ~CpuWorkers();

  // RESOURCE_EXHAUSTED if not all workers could be started: then nothing else may be called.
  const absl::Status& status() const { return status_; }

  // Returns once every worker has scratch for `need`, so that no task allocates any. Serves one
  // caller at a time. Errors: RESOURCE_EXHAUSTED.
  absl::Status Reserve(const ScratchNeed& need);
  void Push(CpuEpochs::Launch launch);
  // As Executor::Cancel and Executor::Observe.
  void Cancel(const CpuEpochs::Target* target, const absl::Status& reason);
  RankState Observe(const CpuEpochs::Target* target, bool times) const;
  // Wakes a worker, because a slot of `target` has risen.
  void Wake(const CpuEpochs::Target* target);
  // As Device::Lend. The first worker drives while it waits.
  void Lend(ProgressEngine* progress);

 private:
  // A worker's own state. A worker that has the seat of a transport polls between tasks and leaves
  // the seat before a long task.
  struct Worker {
    bool drives = false;  // drives the transport while it waits
    GemmWorker gemm;
    ProgressEngine* seat = nullptr;
  };

  void Work(int index);
  // Runs a task of the launch, reports the launch, or sleeps.
  void Advance(CpuEpochs::Launch& launch, Worker& worker, std::unique_lock<std::mutex>& lock);
  // Polls, or leaves a seat that the worker may no longer have. Gives up the lock while it polls.
  void TendSeat(Worker& worker, std::unique_lock<std::mutex>& lock);
  void LeaveSeat(Worker& worker);
  // Allocates the scratch that Reserve asked for.
  void TakeScratch(GemmWorker& worker);
  void Sleep(Worker& worker, std::unique_lock<std::mutex>& lock);
  // Waits by driving the transport. False without a transport to drive.
  bool SleepDriving(Worker& worker, Deadline until, std::unique_lock<std::mutex>& lock);
  // As EpochQueue::Report.
  void Report(CpuEpochs::Launch& launch, std::unique_lock<std::mutex>& lock);

  // Its mutex guards all non-const members below, except status_ and workers_.
  const std::shared_ptr<Monitor> monitor_;
  CpuEpochs epochs_{/*most=*/1};
  int sleeping_ = 0;
  ProgressEngine* lent_to_ = nullptr;
  bool seated_ = false;      // a worker has a seat
  int64_t reported_ns_ = 0;  // when the last launch was over or dead
  bool stopping_ = false;
  std::mutex reserving_;  // of the caller of Reserve; locked before monitor_
  ScratchNeed need_;      // all that was reserved or is being reserved
  uint64_t needs_ = 0;    // the number of changes of need_
  bool short_ = false;    // a worker could not allocate need_
  int reserved_ = 0;      // workers that have tried to
  const int threads_;
  const bool has_spare_core_;  // beside the workers
  absl::Status status_;        // constant from the constructor on
  std::vector<std::thread> workers_;
};

}  // namespace agmm
