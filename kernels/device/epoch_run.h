// One epoch of one rank in progress, on a device of any kind: its waits, its messages, its failure
// and its report. A kind of device derives its run, which adds the lanes and their work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kernels/device/executor.h"
#include "kernels/device/rank_plan.h"
#include "kernels/device/slots.h"
#include "kernels/device/transport.h"

namespace agmm {

// Runs one epoch at a time, and is reused. Guarded like the queue of its device (epoch_queue.h).
class EpochRun {
 public:
  // The end of an epoch, as a run's Settle returns it.
  enum class End {
    kNotYet,  // steps are left, or work or messages are in flight
    kOver,    // nothing of the epoch is in flight
    kStuck,   // its work has not ended long after the epoch failed, and may never end
  };

  virtual ~EpochRun() = default;
  EpochRun(const EpochRun&) = delete;
  EpochRun& operator=(const EpochRun&) = delete;

  // Ends the epoch early: no further step, send or signal starts. The first reason stays.
  void Fail(absl::Status status);
  bool failed() const { return !report_.status.ok(); }
  // OK, or why the epoch has failed.
  const absl::Status& status() const { return report_.status; }
  // The state, with the times of steps if `times`. For an epoch that has failed: its state at that
  // time, with the messages that are in flight now.
  RankState State(bool times) const;
  // As RankPlan::Stall.
  std::string Stall() const { return plan_.Stall(State(/*times=*/false)); }

 protected:
  // The arguments outlive the run.
  EpochRun(const RankPlan& plan, const Slots& slots) : plan_(plan), slots_(slots) {
    report_.steps.resize(plan.steps().size());  // counted by the size_bytes of each kind
  }

  // Starts a new report. Errors: INVALID_ARGUMENT for operands that do not lie in the heaps.
  absl::Status Start(uint64_t epoch, const Operands& operands);
  // Returns true if a step with these waits may begin.
  bool MayBegin(const std::vector<Wait>& waits) const;
  // Returns the waits that do not hold yet.
  std::vector<Wait> Missing(const std::vector<Wait>& waits) const;
  // Counts the message of signals[part] of a step, which is about to be sent, as in flight.
  Message BeginSend(int step, int part, bool push);
  // To be called once for each message, when its bytes have left or could not be sent.
  void EndSend(int step, const absl::Status& status);

  // While a test delays steps, returns the time to sleep now: up to a millisecond, in half of the
  // cases zero.
  static std::optional<absl::Duration> RandomDelay();

  // Called once the epoch has failed.
  virtual void OnFailure() {}
  // The lanes that have steps left.
  virtual std::vector<LaneState> Lanes() const = 0;
  // The times by step, as far as known.
  virtual std::vector<StepTime> Times() const = 0;

  const RankPlan& plan_;
  uint64_t epoch_ = 0;
  Operands operands_;
  int in_flight_ = 0;  // messages between BeginSend and EndSend
  EpochReport report_;

 private:
  bool IsMissing(const Wait& wait) const;

  const Slots& slots_;
};

}  // namespace agmm
