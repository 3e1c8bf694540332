// One epoch of one rank in progress: which lane stands where, what can be done now, and who waits
// for what.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/cpu/pack_cache.h"
#include "kernels/cpu/program.h"
#include "kernels/cpu/slots.h"
#include "kernels/device/device.h"

namespace agmm {

// Guards everything that the workers of one device share. Outlives the device while a callback of a
// send still holds it.
struct Monitor {
  std::mutex mutex;
  DeviceCounters counters;
  std::condition_variable wake;      // something may be ready, over or cancelled: WakeOne, WakeAll
  std::condition_variable drained;   // an executor's launch is over
  ProgressEngine* driven = nullptr;  // what a worker drives while it waits
  std::atomic<bool> stirred{false};  // it is to come back

  // With the mutex held. Who drives is always woken.
  void WakeOne() { wake.notify_one(), Stir(); }
  void WakeAll() { wake.notify_all(), Stir(); }

 private:
  void Stir() {
    if (driven != nullptr && !stirred.exchange(true)) driven->Wake();
  }
};

// Every method is called with monitor->mutex held. At most one epoch at a time.
class RankRun {
 public:
  // Something a worker does at one go, outside the lock.
  struct Task {
    enum Kind { kFinish, kSend, kCopy, kPack, kReduce, kMultiply } kind = kFinish;
    int lane = 0, step = 0;
    int part = 0;  // kSend: index into `to`
    Piece piece;
    bool first = false;  // of its step
  };

  // `schedule` and `problem` are read for error texts alone. All outlive the run.
  RankRun(std::shared_ptr<Monitor> monitor, const Program& program, const Problem& problem,
          const Schedule& schedule, const Peers& peers, const Slots& slots, PackCache& packs);
  ~RankRun();
  RankRun(const RankRun&) = delete;
  RankRun& operator=(const RankRun&) = delete;

  // What its tasks take of the scratch of whichever worker does them.
  ScratchNeed Need() const;
  // Starts an epoch. Errors: INVALID_ARGUMENT for operands that do not lie in the heap; nothing
  // runs then.
  absl::Status Begin(uint64_t epoch, const Operands& operands);
  // The next thing to do, or nothing while all wait. Transfers go before arithmetic.
  std::optional<Task> Next();
  // Whether Next would find more for another worker without anything new having happened.
  bool HasTask() const;
  // Whether `task` may keep a worker for longer than messages can be left lying, where somebody may
  // see to them `beside` it, or not.
  bool IsLong(const Task& task, bool beside) const;
  // Does `task`; gives up `lock` meanwhile.
  void Execute(const Task& task, GemmWorker& worker, std::unique_lock<std::mutex>& lock);
  // Nothing is left to do, in hand or in flight.
  bool over() const;
  // Ends the epoch early: no step, send or signal is started from here on. The first reason stays.
  void Fail(absl::Status status);
  // Who waits for what: "rank 3 lane 1 step 5 waited 5.0 s for slot 3:2 (rows ...), epoch 17".
  std::string Stall() const;

  bool failed() const { return !report_.status.ok(); }
  const absl::Status& status() const { return report_.status; }
  // Closes the epoch once it is over.
  const EpochReport& Close();

 private:
  struct Lane {
    size_t position = 0;  // into Program::lanes
    bool started = false;
    bool finishing = false;
    int64_t since_ns = 0;  // its present step is the next one since
    size_t next_send = 0, next_piece = 0;
    size_t sends_left = 0, pieces_left = 0;
    std::vector<int> parts_left;  // pieces, by `to` of a copy
    std::shared_ptr<const PackedB> packed;
    bool packing = false;
    Scratch chip;  // sums between multiplies, f32, rows dense
  };

  // Whether `bytes` at `offset` are within the heaps of this node's ranks.
  absl::Status CheckLies(absl::string_view what, int64_t offset, int64_t bytes) const;
  int StepOf(size_t lane) const;  // -1 behind the last
  bool Ready(const ProgramStep& step) const;
  void Start(Lane& lane, int step);
  std::optional<Task> TaskOf(size_t lane, Task::Kind kind);
  bool HasTaskOf(const Lane& lane, const ProgramStep& step, Task::Kind kind) const;
  // True: the caller packs. False while another lane packs the same block; sets lane.packed when it
  // is there.
  bool ClaimPack(Lane& lane, const MultiplyOp& multiply);
  PackCache::Key KeyOf(const MultiplyOp& multiply) const;

  void Finish(const Task& task, std::unique_lock<std::mutex>& lock);
  void Send(const Task& task, std::unique_lock<std::mutex>& lock);
  void Copy(const Task& task, std::unique_lock<std::mutex>& lock);
  void Pack(const Task& task, GemmWorker& worker, std::unique_lock<std::mutex>& lock);
  void Back(const Memory& result, const Piece& piece) const;
  absl::Status MultiplyPiece(const MultiplyOp& multiply, const Piece& piece, Lane& lane,
                             GemmWorker& worker) const;
  void ReducePiece(const ReduceOp& reduce, const Piece& piece) const;
  // Raises signals[part] of the step: locally at once, elsewhere by a message. Gives up the lock.
  void Raise(int step, size_t part, std::unique_lock<std::mutex>& lock);
  void SendDone(int step, bool carries_bytes, const absl::Status& status);
  int WorldRank(Rank rank) const;
  std::string StepText(int step) const;

  const std::shared_ptr<Monitor> monitor_;
  const Program& program_;
  const Problem& problem_;
  const Schedule& schedule_;
  const Peers& peers_;
  const Slots& slots_;
  PackCache& packs_;

  const std::string hold_;  // the failpoint that lets no step of this rank begin
  uint64_t epoch_ = 0;
  Operands operands_;
  std::vector<Lane> lanes_;
  int working_ = 0;    // tasks in workers' hands
  int in_flight_ = 0;  // sends whose callback has not come
  EpochReport report_;
};

}  // namespace agmm
