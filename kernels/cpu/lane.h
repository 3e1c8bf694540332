// The progress of one lane through its steps in an epoch, and the tasks that its steps consist of.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/program.h"

namespace agmm {

// A unit of work of one worker.
struct Task {
  enum Kind { kFinish, kSend, kCopy, kPack, kReduce, kMultiply } kind = kFinish;
  int lane = 0, step = 0;
  int part = 0;  // kSend: index into `to`
  Piece piece;
};

// Guarded by the device's monitor.
struct Lane {
  enum class Phase {
    kWaiting,    // waits for the slots of the step at `position`, or is past the last step
    kRunning,    // the step has started
    kPacking,    // a worker packs the B of its multiply
    kFinishing,  // a worker raises its last signals
  };

  // True if a worker has taken a task of the step at `position`.
  bool IsTaken() const;
  // Waits at this position from now on.
  void Reach(size_t new_position, int64_t now_ns);
  void StartStep(const ProgramStep& step);
  // Returns true if `step`, which is the one at `position`, has a task of this kind that is not
  // taken.
  bool Has(const ProgramStep& step, Task::Kind kind) const;
  // Takes such a task. Sets all fields except Task::lane and Task::step.
  Task Take(const ProgramStep& step, Task::Kind kind);

  size_t position = 0;  // into Program::lanes
  Phase phase = Phase::kWaiting;
  int64_t since_ns = 0;  // when it reached that position
  size_t next_send = 0, next_piece = 0;
  size_t sends_left = 0, pieces_left = 0;
  std::vector<int> parts_left;  // pieces, by `to` of a copy
  std::shared_ptr<const PackedB> packed;
  Scratch chip;      // sums between multiplies, f32, rows dense
  Scratch packed_b;  // for the running step, if its B has arrived
};

}  // namespace agmm
