// One epoch of one rank in progress: the position of each lane, the tasks that can run now, and the
// slots that its steps wait for.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cpu/lane.h"
#include "kernels/cpu/pack_cache.h"
#include "kernels/cpu/program.h"
#include "kernels/device/device.h"
#include "kernels/device/epoch_run.h"

namespace agmm {

// Guards everything that the workers of one device share. Outlives the device while the callback of
// a send holds it.
struct Monitor {
  std::mutex mutex;
  DeviceCounters counters;
  std::condition_variable wake;            // a launch may be ready, over or cancelled: see below
  std::condition_variable worker_changed;  // a worker has tried to take scratch, or has left a seat
  ProgressEngine* driven = nullptr;        // driven by a worker while it waits
  std::atomic<bool> stirred{false};        // makes that worker return from it

  // Requires the mutex. Both wake the worker that drives.
  void WakeOne() { wake.notify_one(), Stir(); }
  void WakeAll() { wake.notify_all(), Stir(); }

 private:
  void Stir() {
    if (driven != nullptr && !stirred.exchange(true)) driven->Wake();
  }
};

// Every method is called with monitor->mutex held.
class RankRun final : public EpochRun {
 public:
  // All arguments outlive the run.
  RankRun(std::shared_ptr<Monitor> monitor, const Program& program, const RankPlan& plan,
          const Slots& slots, PackCache& packs);
  ~RankRun() override;

  // Starts an epoch. It fails for operands that do not lie in the heap.
  void Begin(uint64_t epoch, const Operands& operands);
  // Returns the next task, or none while all lanes wait. Transfers go before arithmetic.
  std::optional<Task> Next();
  // Returns true if Next would find a task for another worker now.
  bool HasTask() const;
  // Returns true if `task` may run so long that the worker should leave the transport's seat first.
  // `has_spare_core`: the transport's own thread can run meanwhile.
  bool IsLong(const Task& task, bool has_spare_core) const;
  // Runs `task`; gives up `lock` meanwhile.
  void Execute(const Task& task, GemmWorker& worker, std::unique_lock<std::mutex>& lock);
  // Returns the end of the epoch: kNotYet while a task is left, running or in flight, else kOver.
  End Settle() const;
  // Ends the report of an epoch that is over.
  const EpochReport& Close();

  // Returns the memory of the run, without the lanes' scratch, which the device counts.
  int64_t size_bytes() const;

 private:
  int StepOf(size_t lane) const;  // -1 after the last
  std::optional<Task> TaskOf(size_t lane, Task::Kind kind);
  bool HasTaskOf(size_t lane, Task::Kind kind) const;
  PackCache::Key KeyOf(const GemmOp& multiply) const;

  // For tests: gives up the lock for a random time.
  static void DelayRandomly(std::unique_lock<std::mutex>& lock);
  void Finish(const Task& task, std::unique_lock<std::mutex>& lock);
  void Send(const Task& task, std::unique_lock<std::mutex>& lock);
  void Copy(const Task& task, std::unique_lock<std::mutex>& lock);
  void Pack(const Task& task, GemmWorker& worker, std::unique_lock<std::mutex>& lock);
  // Backs the piece's rows with large pages of the heap before they are first written.
  void CommitPages(const HeapPlace& result, const Piece& piece) const;
  // Raises signals[part] of the step: at once on this node, by a message on another. Gives up the
  // lock.
  void Raise(int step, size_t part, std::unique_lock<std::mutex>& lock);
  // Sends signals[part] of the step to another node, behind `rows` if there are any. Gives up the
  // lock.
  void SendRows(int step, int part, bool push, const Rows& rows,
                std::unique_lock<std::mutex>& lock);
  void SendDone(int step, bool carries_bytes, const absl::Status& status);
  std::vector<LaneState> Lanes() const override;
  std::vector<StepTime> Times() const override { return report_.steps; }

  const std::shared_ptr<Monitor> monitor_;
  const Program& program_;
  PackCache& packs_;

  std::vector<Lane> lanes_;
  // By step, of multiplies whose B has arrived: a view of its lane's memory, which steps of one
  // layout share.
  std::vector<std::shared_ptr<PackedB>> arrived_b_;
  int working_ = 0;  // tasks that workers run
};

}  // namespace agmm
