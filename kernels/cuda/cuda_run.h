// One epoch of one rank in progress: the position of each lane, the submitted work, and the events
// since.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/gpu_clock.h"
#include "kernels/cuda/gpu_thread.h"
#include "kernels/cuda/prepared.h"
#include "kernels/cuda/step_work.h"
#include "kernels/cuda/work_clock.h"
#include "kernels/device/epoch_run.h"

namespace agmm {

// Only the GPU's thread calls it.
class CudaRun final : public EpochRun {
 public:
  enum class Phase {
    kSubmitting,  // steps are left to submit
    kDraining,    // no further step is submitted; work or messages may be in flight
    kAbandoned,   // the same, and nothing waits for the work, because it may never end
  };

  // The plan and the clock outlive the run; the inbox, to which the ends of sends go, lives as long
  // as a send has it. `words`: the number of the run's words of the host.
  CudaRun(const CudaPrepared& prepared, int words, const GpuClock& clock,
          std::shared_ptr<GpuInbox> inbox);

  // Returns the memory of the run between epochs.
  int64_t size_bytes() const;
  // Starts an epoch. Lanes that begin (CudaProgram::begins) will wait for `after`, the end of the
  // rank's last epoch; may be null. The epoch fails for operands that do not lie in the heap.
  void Begin(uint64_t epoch, const Operands& operands, CUevent after);
  // Requires kSubmitting. Submits ready steps. When none is left, or the run has failed, records
  // `end` on `order` behind all lanes except relay lanes, and drains. Returns true if anything was
  // submitted or the phase has changed.
  bool Advance(CUstream order, CUevent end);
  Phase phase() const { return phase_; }
  const CudaPrepared& prepared() const { return prepared_; }
  // `end`, if it was recorded. Otherwise nothing of the rank may be submitted before a run that no
  // longer submits is over.
  CUevent end() const { return end_; }
  // Sends the messages that are ready and releases memory. Returns true if it has done any of this.
  bool Poll();
  // Returns true if something waits for the end of work on the GPU.
  bool in_hand() const { return phase_ != Phase::kSubmitting || has_sequels(); }
  // Requires that the rank's earlier epochs are over. After kStuck, status() also says so, and the
  // owner gives up the GPUs that the work may write, and abandons the rank's runs.
  End Settle(int64_t now_ns);
  // After kStuck: why the work may never end.
  const absl::Status& stuck() const { return stuck_; }
  // Stops waiting for the run's work, because it is behind work that may never end.
  void Abandon(const absl::Status& why);
  // Ends the report of an epoch that is over or stuck.
  const EpochReport& Close();

 private:
  struct Lane {
    size_t position = 0;       // into CudaProgram::lanes: the unit to submit next
    int64_t since_ns = 0;      // the time at which it reached this position
    CUevent tail = nullptr;    // after the last submitted unit
    std::deque<int> messages;  // submitted units with messages to send, in their order
  };
  // Pinned bytes of a copy.
  struct Staged {
    std::byte* data = nullptr;
    int users = 0;
  };
  // The second half of a copy through pinned memory that has been submitted and has not ended.
  struct Arriving {
    int step = 0;
    CUevent event = nullptr;
    Gpu* gpu = nullptr;  // where the event is recorded
  };

  size_t IndexOf(const Lane& lane) const { return &lane - lanes_.data(); }
  bool IsRelay(const Lane& lane) const { return program_.relays[IndexOf(lane)]; }
  const LaunchUnit* NextUnit(const Lane& lane) const;  // null after the last
  size_t IndexOf(const LaunchUnit& unit) const { return &unit - program_.units.data(); }
  // Submits ready units; returns true if any were submitted.
  bool Submit();
  bool MaySubmit(const LaunchUnit& unit);
  // The same for a unit that is submitted together with those of other ranks.
  bool MaySubmitWithGroup(const LaunchUnit& unit);
  // Returns true if a unit from this position of the lane on is in the group.
  bool HasGroupUnits(int lane, size_t position) const;
  // Returns true while the rank submits nothing, because others have not submitted theirs.
  bool WaitsForGroup() const;
  // Returns true if a unit is left that may be submitted.
  bool has_units() const;
  // Calls visit(step) for each step of the unit, and each transfer that it carries.
  template <typename Visit>
  static void ForEachStep(const LaunchUnit& unit, const Visit& visit);
  // Tells the receivers of carried transfers that a kernel will send them.
  void Promise();
  bool TakeStaging(int step);
  std::byte* StagedFor(int step) const;  // null if it needs none
  absl::Status SubmitUnit(const LaunchUnit& unit);
  absl::Status PutUnit(const LaunchUnit& unit);
  // Queues a copy of the epoch's number to the slot that signals[part] of the step raises, if a
  // kernel waits for it.
  absl::Status StoreSlot(Gpu& gpu, int step, size_t part, CUstream stream) const;
  absl::Status Arrive(int step, const CudaPrepared::Through& half);
  // Records the event after a failed call, which may have submitted work.
  void RecordAnyway(Gpu& gpu, CUevent event, CUstream stream);
  absl::Status RecordEnd(CUstream order, CUevent end);
  // Raises the step's slots on this node.
  void Raise(int step);
  bool IsCarried(int step, size_t part) const;
  // Sends the step's messages. Requires that its work on the GPU is over.
  void SendAll(int step);
  void Send(int step, int part, bool push, const Rows& rows);
  void SendDone(int step, bool carried_bytes, const absl::Status& status);
  void Release(int step);
  // Returns true if submitted work is followed by messages, or by memory to release.
  bool has_sequels() const;
  bool Done(CUevent event) { return Done(gpu_, event); }
  bool Done(Gpu& gpu, CUevent event);
  bool HasArrived(const Arriving& arriving);
  // True if the unit was submitted and the GPU has not ended it.
  bool IsAtWork(int unit) const;
  // The times of a unit that one kernel computes, block by block, if they are traced. `whole`: of
  // the unit.
  void TimesOfBlocks(int unit, const StepTime& whole, std::vector<StepTime>* times) const;
  // The state of a lane whose unit waits until all ranks of the group can submit: a slot that
  // another rank's kernel will raise.
  void DescribeGroup(const LaunchUnit& unit, LaneState* state) const;
  // The state of a lane whose unit is at work: the slot for which its kernel waits, if any is
  // known.
  void DescribeAtWork(const LaunchUnit& unit, LaneState* state) const;
  // Returns true if no submitted work runs any more.
  bool IsIdle();
  const CudaPrepared::UnitEvents& EventsOf(int unit) const {
    return prepared_.events(unit, epoch_);
  }
  void OnFailure() override;
  std::vector<LaneState> Lanes() const override;
  // Knows the times of steps that the GPU has reached.
  std::vector<StepTime> Times() const override;

  const CudaPrepared& prepared_;
  const CudaProgram& program_;
  Gpu& gpu_;
  const GpuClock& clock_;
  const StepWork work_;
  const LaunchWords words_;
  const std::shared_ptr<GpuInbox> inbox_;

  // Begin resets all below.
  std::optional<WorkClock::Begun> begun_;
  CUevent after_ = nullptr;
  CUevent end_ = nullptr;  // null until it is recorded
  Phase phase_ = Phase::kSubmitting;
  bool unseen_ = false;  // no event follows some of the work
  std::vector<Lane> lanes_;
  std::map<int, Staged> staged_;  // by step
  std::deque<Arriving> arriving_;
  std::vector<bool> submitted_;                  // by unit
  bool arrived_ = false, has_launched_ = false;  // in the group; its units are submitted
  int64_t alone_ns_ = 0;    // when it had failed and earlier epochs were over; else 0
  int64_t allowed_ns_ = 0;  // the time that all earlier work may take, read at alone_ns_
  absl::Status stuck_;
};

}  // namespace agmm
