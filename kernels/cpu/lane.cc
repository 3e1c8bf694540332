#include "kernels/cpu/lane.h"

namespace agmm {

void Lane::Reach(size_t new_position, int64_t now_ns) {
  position = new_position;
  phase = Phase::kWaiting;
  packed.reset();
  since_ns = now_ns;
}

bool Lane::IsTaken() const {
  if (phase == Phase::kWaiting) return false;
  return phase != Phase::kRunning || next_send > 0 || next_piece > 0 || packed != nullptr;
}

void Lane::StartStep(const ProgramStep& step) {
  phase = Phase::kRunning;
  next_send = next_piece = 0;
  pieces_left = step.pieces.size();
  sends_left = 0;
  if (const auto* copy = std::get_if<CopyOp>(&step.op)) {
    sends_left = copy->sends.size();
    parts_left.assign(copy->to.size(), 0);
    for (const Piece& piece : step.pieces) ++parts_left[piece.target];
  }
}

bool Lane::Has(const ProgramStep& step, Task::Kind kind) const {
  if (phase != Phase::kRunning) return false;
  const auto* copy = std::get_if<CopyOp>(&step.op);
  const bool has_piece = next_piece < step.pieces.size();
  switch (kind) {
    case Task::kFinish: return pieces_left == 0 && sends_left == 0;
    case Task::kSend: return copy != nullptr && next_send < copy->sends.size();
    case Task::kCopy: return has_piece && copy != nullptr;
    case Task::kReduce: return has_piece && std::holds_alternative<ReduceOp>(step.op);
    case Task::kPack: return std::holds_alternative<GemmOp>(step.op) && packed == nullptr;
    case Task::kMultiply: return has_piece && packed != nullptr;
  }
  return false;
}

Task Lane::Take(const ProgramStep& step, Task::Kind kind) {
  Task task{kind};
  switch (kind) {
    case Task::kFinish: phase = Phase::kFinishing; break;
    case Task::kSend: task.part = std::get<CopyOp>(step.op).sends[next_send++]; break;
    case Task::kPack: phase = Phase::kPacking; break;
    default: task.piece = step.pieces[next_piece++];
  }
  return task;
}

}  // namespace agmm
