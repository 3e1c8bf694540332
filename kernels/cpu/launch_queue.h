// The workers of one device and the epochs queued on it: one first-in-first-out queue for all
// executors. An epoch begins when the one before it is over and its `done` has returned; that is
// the launch order which schedules are proved with.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "kernels/cpu/rank_run.h"
#include "kernels/device/executor.h"

namespace agmm {

// What the queue needs of an executor. The fields are guarded by the device's monitor.
struct LaunchTarget {
  RankRun* run = nullptr;  // null before Prepare
  absl::Status failure;    // why no epoch of it runs any more
  int queued = 0;          // launches whose `done` has not returned
};

struct Launch {
  LaunchTarget* target = nullptr;
  uint64_t epoch = 0;
  Operands operands;
  absl::Time deadline;
  Executor::DoneCallback done;
  int64_t queued_ns = 0;
  int rank = 0;  // as errors call it
  enum State { kQueued, kRunning, kReporting } state = kQueued;
};

class LaunchQueue {
 public:
  LaunchQueue(std::shared_ptr<Monitor> monitor, int threads);
  // Waits for the workers; the queue must be empty.
  ~LaunchQueue();

  // Returns once every worker has scratch for `need`: no task allocates any then. One caller at a
  // time is served. Errors: RESOURCE_EXHAUSTED.
  absl::Status Reserve(const ScratchNeed& need);
  void Push(Launch launch);
  // Fails the launches of `target` that are not over; where there is none, nothing happens.
  void Cancel(LaunchTarget* target, const absl::Status& reason);
  // Returns when no launch of `target` is left.
  void Drain(LaunchTarget* target);
  // A slot of `target` has risen.
  void Wake(LaunchTarget* target);
  // As Device::Lend: the first worker drives while it waits.
  void Lend(ProgressEngine* progress);

 private:
  using Iterator = std::list<Launch>::iterator;

  // A worker's own. With the seat of a transport it polls between tasks, and leaves it before a
  // long one.
  struct Worker {
    bool drives = false;  // where there is something to drive
    GemmWorker gemm;
    ProgressEngine* seat = nullptr;
  };

  void Work(int index);
  void Advance(Launch& front, Worker& worker, std::unique_lock<std::mutex>& lock);
  // Leaves the seat that the worker has no right to any more, or polls.
  void TendSeat(Worker& worker, std::unique_lock<std::mutex>& lock);
  void LeaveSeat(Worker& worker);
  // Does what Reserve asked for.
  void TakeScratch(GemmWorker& worker);
  void Sleep(Worker& worker, std::unique_lock<std::mutex>& lock);
  // True when it has waited so.
  bool SleepDriving(Worker& worker, absl::Time until, std::unique_lock<std::mutex>& lock);
  // One launch that will never run because its target failed or its deadline has passed; end() if
  // none.
  Iterator FindDead(absl::Time now);
  // No epoch of the launch's target runs after this; one in progress drains. The first reason
  // stays.
  void Fail(Launch& launch, const absl::Status& status);
  // Calls `done` and takes the launch out; gives up the lock meanwhile.
  void Report(Iterator launch, const EpochReport& report, std::unique_lock<std::mutex>& lock);
  // Who waits for what: in the epoch in progress, or in the queue.
  static std::string Stall(const Launch& launch);

  const std::shared_ptr<Monitor> monitor_;
  std::list<Launch> queue_;
  int sleeping_ = 0;
  ProgressEngine* lent_to_ = nullptr;
  bool seated_ = false;      // a worker has a seat
  int64_t reported_ns_ = 0;  // when the last launch was over
  bool stopping_ = false;
  std::mutex reserving_;                       // before the monitor's
  ScratchNeed need_;                           // of all that was reserved, and of what is being
  uint64_t needs_ = 0;                         // how often need_ has changed
  bool short_ = false;                         // a worker has not got it
  int reserved_ = 0;                           // workers that have scratch for it
  bool sweep_ = false;                         // a launch may be dead
  absl::Time alarm_ = absl::InfiniteFuture();  // the next deadline that somebody must act on
  const int threads_;
  const bool core_to_spare_;  // beside the workers
  std::vector<std::thread> workers_;
};

}  // namespace agmm
