// The workers of one device and the epochs queued on it: one first-in-first-out queue for all
// executors. An epoch begins when the previous epoch is over and its `done` has returned. Verify
// proves schedules for this launch order.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/deadline.h"
#include "kernels/cpu/rank_run.h"
#include "kernels/device/executor.h"
#include "kernels/device/queued_epoch.h"

namespace agmm {

// An executor as the queue sees it. The fields are guarded by the device's monitor.
struct LaunchTarget {
  RankRun* run = nullptr;  // null before Prepare
  absl::Status failure;    // why none of its epochs runs any more
  int queued = 0;          // launches whose `done` has not returned
};

struct Launch : QueuedEpoch {
  LaunchTarget* target = nullptr;
  enum State { kQueued, kRunning, kReporting } state = kQueued;
};

class LaunchQueue {
 public:
  LaunchQueue(std::shared_ptr<Monitor> monitor, int threads);
  // Waits for the workers. Requires an empty queue.
  ~LaunchQueue();

  // RESOURCE_EXHAUSTED if not all workers could be started: then nothing else may be called.
  const absl::Status& status() const { return status_; }

  // Returns once every worker has scratch for `need`, so that no task allocates any. Serves one
  // caller at a time. Errors: RESOURCE_EXHAUSTED.
  absl::Status Reserve(const ScratchNeed& need);
  void Push(Launch launch);
  // Fails the launches of `target` that are not over, if any.
  void Cancel(LaunchTarget* target, const absl::Status& reason);
  // As Executor::Observe.
  RankState Observe(const LaunchTarget* target, bool times) const;
  // Returns when no launch of `target` is left.
  void Drain(LaunchTarget* target);
  // Wakes a worker, because a slot of `target` has risen.
  void Wake(LaunchTarget* target);
  // As Device::Lend. The first worker drives while it waits.
  void Lend(ProgressEngine* progress);

 private:
  using Iterator = std::list<Launch>::iterator;

  // A worker's own state. A worker that has the seat of a transport polls between tasks and leaves
  // the seat before a long task.
  struct Worker {
    bool drives = false;  // drives the transport while it waits
    GemmWorker gemm;
    ProgressEngine* seat = nullptr;
  };

  void Work(int index);
  void Advance(Launch& front, Worker& worker, std::unique_lock<std::mutex>& lock);
  // Polls, or leaves a seat that the worker may no longer have.
  void TendSeat(Worker& worker, std::unique_lock<std::mutex>& lock);
  void LeaveSeat(Worker& worker);
  // Allocates the scratch that Reserve asked for.
  void TakeScratch(GemmWorker& worker);
  void Sleep(Worker& worker, std::unique_lock<std::mutex>& lock);
  // Waits by driving the transport. False without a transport to drive.
  bool SleepDriving(Worker& worker, Deadline until, std::unique_lock<std::mutex>& lock);
  // A launch that will never run because its target failed or its deadline has passed; otherwise
  // end().
  Iterator FindDead(int64_t now_ns);
  // Fails the launch's target: none of its epochs runs after this, and one in progress drains. The
  // first reason stays.
  void Fail(Launch& launch, const absl::Status& status);
  // Calls `done` and removes the launch; gives up the lock meanwhile.
  void Report(Iterator launch, const EpochReport& report, std::unique_lock<std::mutex>& lock);
  // The step that holds up the launch, or its wait in the queue.
  static std::string Stall(const Launch& launch);

  // Its mutex guards all non-const members below, except status_ and workers_.
  const std::shared_ptr<Monitor> monitor_;
  std::list<Launch> queue_;
  int sleeping_ = 0;
  ProgressEngine* lent_to_ = nullptr;
  bool seated_ = false;      // a worker has a seat
  int64_t reported_ns_ = 0;  // when the last launch was over
  bool stopping_ = false;
  std::mutex reserving_;  // of the caller of Reserve; locked before monitor_
  ScratchNeed need_;      // all that was reserved or is being reserved
  uint64_t needs_ = 0;    // the number of changes of need_
  bool short_ = false;    // a worker could not allocate need_
  int reserved_ = 0;      // workers that have tried to
  bool sweep_ = false;    // a launch may be dead
  Deadline alarm_;        // the next deadline of a launch
  const int threads_;
  const bool has_spare_core_;  // beside the workers
  absl::Status status_;        // constant from the constructor on
  std::vector<std::thread> workers_;
};

}  // namespace agmm
