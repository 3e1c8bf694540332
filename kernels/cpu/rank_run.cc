#include "kernels/cpu/rank_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

// A core does so many in about ten milliseconds; what comes meanwhile lies in the buffers of the
// sockets, and is cheaper to fetch in one go (NOTES.md).
constexpr double kLongFlops = 4e9;
// Where a core is free the transport's own thread works there beside a multiply of that many; a
// shorter one is over before it has woken up.
constexpr double kLongFlopsBeside = 1e7;

// Nothing half of the time and else up to a millisecond, where a test asks for it.
void RandomDelay() {
  if (!AGMM_FAILPOINT("executor.delay")) return;
  thread_local uint64_t state = static_cast<uint64_t>(MonotonicNanos()) | 1;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  if (state % 2 == 0) absl::SleepFor(absl::Microseconds(state / 2 % 1000));
}

const CopyOp* AsCopy(const ProgramStep& step) { return std::get_if<CopyOp>(&step.op); }
const MultiplyOp* AsMultiply(const ProgramStep& step) { return std::get_if<MultiplyOp>(&step.op); }

}  // namespace

RankRun::RankRun(std::shared_ptr<Monitor> monitor, const Program& program, const Problem& problem,
                 const Schedule& schedule, const Peers& peers, const Slots& slots, PackCache& packs)
    : monitor_(std::move(monitor)),
      program_(program),
      problem_(problem),
      schedule_(schedule),
      peers_(peers),
      slots_(slots),
      packs_(packs),
      hold_(absl::StrFormat("executor.hold_rank_%d", WorldRank(peers.self))),
      lanes_(program.lanes.size()) {
  // All before any is counted: one may not be had.
  for (size_t lane = 0; lane < lanes_.size(); ++lane)
    lanes_[lane].chip.Get(program.chip_bytes[lane]);
  for (const Lane& lane : lanes_) {
    monitor_->counters.scratch_bytes += lane.chip.bytes();
    monitor_->counters.allocations += lane.chip.allocations();
  }
}

RankRun::~RankRun() {
  for (const Lane& lane : lanes_) monitor_->counters.scratch_bytes -= lane.chip.bytes();
}

absl::Status RankRun::Begin(uint64_t epoch, const Operands& operands) {
  epoch_ = epoch;
  report_.status = absl::OkStatus();
  report_.start_ns = MonotonicNanos();
  report_.end_ns = 0;
  report_.steps.assign(program_.steps.size(), {});
  const size_t count = program_.operand_bytes.size();
  if (operands.offsets.size() != count || operands.versions.size() != count) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d offsets and %d versions were given for %d operands",
                        operands.offsets.size(), operands.versions.size(), count));
  }
  for (size_t i = 0; i < count; ++i) {
    AGMM_RETURN_IF_ERROR(
        CheckLies(problem_.tensors[i].name, operands.offsets[i], program_.operand_bytes[i]));
  }
  AGMM_RETURN_IF_ERROR(
      CheckLies("the workspace", operands.workspace_offset, program_.workspace_bytes));
  operands_ = operands;
  for (Lane& lane : lanes_) {
    lane.position = 0;
    lane.started = lane.finishing = lane.packing = false;
    lane.packed.reset();
    lane.since_ns = report_.start_ns;
  }
  return absl::OkStatus();
}

absl::Status RankRun::CheckLies(absl::string_view what, int64_t offset, int64_t bytes) const {
  for (Heap* heap : peers_.heaps) {
    if (heap == nullptr || bytes == 0) continue;
    if (offset < 0 || offset % kRowAlignBytes != 0 || offset > heap->size_bytes() - bytes) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s of %d B at offset %d does not lie in a heap of %d B at a multiple of %d", what, bytes,
          offset, heap->size_bytes(), kRowAlignBytes));
    }
  }
  return absl::OkStatus();
}

int RankRun::StepOf(size_t lane) const {
  const std::vector<int>& steps = program_.lanes[lane];
  return lanes_[lane].position < steps.size() ? steps[lanes_[lane].position] : -1;
}

bool RankRun::Ready(const ProgramStep& step) const {
  if (AGMM_FAILPOINT(hold_)) return false;
  return std::all_of(step.waits.begin(), step.waits.end(), [&](const Wait& wait) {
    return slots_.Holds(wait, epoch_) || (wait.lag > 0 && AGMM_FAILPOINT("executor.skip_credit"));
  });
}

void RankRun::Start(Lane& lane, int index) {
  const ProgramStep& step = program_.steps[index];
  lane.started = true;
  lane.next_send = lane.next_piece = 0;
  lane.pieces_left = step.pieces.size();
  lane.sends_left = 0;
  if (const CopyOp* copy = AsCopy(step)) {
    lane.sends_left = copy->sends.size();
    lane.parts_left.assign(copy->to.size(), 0);
    for (const Piece& piece : step.pieces) ++lane.parts_left[piece.target];
  }
  report_.steps[index].start_ns = MonotonicNanos();
}

std::optional<RankRun::Task> RankRun::Next() {
  if (failed()) return std::nullopt;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const int step = StepOf(lane);
    if (step >= 0 && !lanes_[lane].started && Ready(program_.steps[step]))
      Start(lanes_[lane], step);
  }
  for (int kind = Task::kFinish; kind <= Task::kMultiply; ++kind) {
    for (size_t lane = 0; lane < lanes_.size(); ++lane) {
      if (auto task = TaskOf(lane, static_cast<Task::Kind>(kind))) {
        ++working_;
        return task;
      }
    }
  }
  return std::nullopt;
}

bool RankRun::HasTask() const {
  if (failed()) return false;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (!lanes_[lane].started) continue;
    for (int kind = Task::kFinish; kind <= Task::kMultiply; ++kind) {
      if (HasTaskOf(lanes_[lane], program_.steps[StepOf(lane)], static_cast<Task::Kind>(kind)))
        return true;
    }
  }
  return false;
}

bool RankRun::HasTaskOf(const Lane& lane, const ProgramStep& step, Task::Kind kind) const {
  if (kind == Task::kFinish)
    return !lane.finishing && lane.pieces_left == 0 && lane.sends_left == 0;
  const CopyOp* copy = AsCopy(step);
  if (kind == Task::kSend) return copy != nullptr && lane.next_send < copy->sends.size();
  if (lane.next_piece == step.pieces.size()) return false;
  switch (kind) {
    case Task::kCopy: return copy != nullptr;
    case Task::kReduce: return std::holds_alternative<ReduceOp>(step.op);
    case Task::kMultiply: return lane.packed != nullptr;
    case Task::kPack: {
      const MultiplyOp* multiply = AsMultiply(step);
      if (multiply == nullptr || lane.packed != nullptr || lane.packing) return false;
      return !multiply->b_is_operand ||
             !packs_.Find(KeyOf(*multiply), operands_.versions[multiply->b.buffer]).busy;
    }
    default: return false;
  }
}

std::optional<RankRun::Task> RankRun::TaskOf(size_t index, Task::Kind kind) {
  Lane& lane = lanes_[index];
  if (!lane.started) return std::nullopt;
  const int step_index = StepOf(index);
  const ProgramStep& step = program_.steps[step_index];
  if (!HasTaskOf(lane, step, kind)) return std::nullopt;
  Task task{kind, static_cast<int>(index), step_index};
  switch (kind) {
    case Task::kFinish:
      lane.finishing = true;
      task.first = step.pieces.empty() && (AsCopy(step) == nullptr || AsCopy(step)->sends.empty());
      break;
    case Task::kSend:
      task.first = lane.next_send == 0;
      task.part = AsCopy(step)->sends[lane.next_send++];
      break;
    case Task::kPack:
      if (!ClaimPack(lane, *AsMultiply(step))) return std::nullopt;
      break;
    default: task.first = lane.next_piece == 0; task.piece = step.pieces[lane.next_piece++];
  }
  return task;
}

PackCache::Key RankRun::KeyOf(const MultiplyOp& multiply) const {
  const Memory& b = multiply.b;
  return {b.At(operands_, 0), b.pitch_bytes, multiply.n, multiply.k, b.dtype};
}

bool RankRun::ClaimPack(Lane& lane, const MultiplyOp& multiply) {
  if (multiply.b_is_operand) {
    const uint64_t version = operands_.versions[multiply.b.buffer];
    const PackCache::Lookup found = packs_.Find(KeyOf(multiply), version);
    lane.packed = found.packed;
    if (found.packed != nullptr || found.busy) return false;
    packs_.Claim(KeyOf(multiply), version);
  }
  lane.packing = true;
  return true;
}

bool RankRun::over() const {
  if (working_ > 0 || in_flight_ > 0) return false;
  if (failed()) return true;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (StepOf(lane) >= 0) return false;
  }
  return true;
}

void RankRun::Fail(absl::Status status) {
  if (!failed()) report_.status = std::move(status);
}

const EpochReport& RankRun::Close() {
  report_.end_ns = MonotonicNanos();
  for (Lane& lane : lanes_) lane.packed.reset();
  return report_;
}

bool RankRun::IsLong(const Task& task, bool beside) const {
  if (task.kind == Task::kPack) return true;
  const auto* multiply = std::get_if<MultiplyOp>(&program_.steps[task.step].op);
  return multiply != nullptr && 2.0 * task.piece.rows * multiply->n * multiply->k >
                                    (beside ? kLongFlopsBeside : kLongFlops);
}

void RankRun::Execute(const Task& task, GemmWorker& worker, std::unique_lock<std::mutex>& lock) {
  const ProgramStep& step = program_.steps[task.step];
  Lane& lane = lanes_[task.lane];
  if (task.first) {
    lock.unlock();
    RandomDelay();
    lock.lock();
  }
  switch (task.kind) {
    case Task::kFinish: Finish(task, lock); break;
    case Task::kSend: Send(task, lock); break;
    case Task::kCopy: Copy(task, lock); break;
    case Task::kPack: Pack(task, worker, lock); break;
    case Task::kReduce: {
      lock.unlock();
      ReducePiece(std::get<ReduceOp>(step.op), task.piece);
      lock.lock();
      --lane.pieces_left;
      break;
    }
    case Task::kMultiply: {
      lock.unlock();
      absl::Status status = MultiplyPiece(std::get<MultiplyOp>(step.op), task.piece, lane, worker);
      lock.lock();
      --lane.pieces_left;
      if (!status.ok()) Fail(Annotate(status, StepText(task.step)));
      break;
    }
  }
  --working_;
}

void RankRun::Finish(const Task& task, std::unique_lock<std::mutex>& lock) {
  const ProgramStep& step = program_.steps[task.step];
  const CopyOp* copy = AsCopy(step);
  const size_t own = copy != nullptr ? copy->to.size() : 0;
  // A copy ended with its last `to`, before the slot of that one was raised.
  if (own == 0) report_.steps[task.step].end_ns = MonotonicNanos();
  for (size_t part = own; part < step.signals.size(); ++part) Raise(task.step, part, lock);
  Lane& lane = lanes_[task.lane];
  lane.packed.reset();
  ++lane.position;
  lane.started = lane.finishing = lane.packing = false;
  lane.since_ns = MonotonicNanos();
}

void RankRun::Send(const Task& task, std::unique_lock<std::mutex>& lock) {
  if (failed()) return;
  const ProgramStep& step = program_.steps[task.step];
  const CopyOp& copy = *AsCopy(step);
  const Rows rows{copy.from.At(operands_, 0), copy.rows, copy.cols * SizeOf(copy.from.dtype),
                  copy.from.pitch_bytes, /*padded=*/true};
  ++in_flight_;
  lock.unlock();
  peers_.transport->Send(
      step.signals[task.part].node,
      {peers_.plan, epoch_, peers_.self, task.step, task.part, copy.push[task.part]}, rows,
      [this, monitor = monitor_, step = task.step](absl::Status status) {
        std::lock_guard guard(monitor->mutex);
        SendDone(step, true, status);
      });
  lock.lock();
}

void RankRun::SendDone(int step, bool carries_bytes, const absl::Status& status) {
  --in_flight_;
  if (carries_bytes) {
    --lanes_[program_.steps[step].lane].sends_left;
    report_.steps[step].end_ns = MonotonicNanos();
  }
  if (!status.ok()) {
    Fail(Annotate(status,
                  absl::StrFormat("%s could not be sent (%s), epoch %d", StepText(step),
                                  Describe(problem_, schedule_.ranks[peers_.self][step]), epoch_)));
  }
  monitor_->WakeOne();
}

void RankRun::Copy(const Task& task, std::unique_lock<std::mutex>& lock) {
  const CopyOp& copy = *AsCopy(program_.steps[task.step]);
  Lane& lane = lanes_[task.lane];
  lock.unlock();
  CopyRows(copy.from.Rows(operands_, task.piece.row),
           copy.to[task.piece.target].Rows(operands_, task.piece.row), task.piece.rows, copy.cols);
  lock.lock();
  if (--lane.parts_left[task.piece.target] == 0) {
    report_.steps[task.step].end_ns = MonotonicNanos();
    Raise(task.step, task.piece.target, lock);
  }
  --lane.pieces_left;
}

void RankRun::Raise(int step_index, size_t part, std::unique_lock<std::mutex>& lock) {
  const ProgramStep& step = program_.steps[step_index];
  if (failed() || part >= step.signals.size()) return;
  const Signalled& signalled = step.signals[part];
  if (signalled.executor == nullptr) ++in_flight_;
  lock.unlock();
  RandomDelay();
  if (signalled.executor != nullptr) {
    signalled.executor->Signal(signalled.slot, epoch_);
  } else {
    peers_.transport->Send(signalled.node,
                           {peers_.plan, epoch_, peers_.self, step_index, static_cast<int>(part)},
                           {}, [this, monitor = monitor_, step_index](absl::Status status) {
                             std::lock_guard guard(monitor->mutex);
                             SendDone(step_index, false, status);
                           });
  }
  lock.lock();
}

void RankRun::Pack(const Task& task, GemmWorker& worker, std::unique_lock<std::mutex>& lock) {
  const MultiplyOp& multiply = *AsMultiply(program_.steps[task.step]);
  Lane& lane = lanes_[task.lane];
  lock.unlock();
  absl::StatusOr<PackedB> packed = multiply.full->Pack(multiply.b.Rows(operands_, 0), worker);
  lock.lock();
  lane.packing = false;
  ++monitor_->counters.packs;
  if (packed.ok()) ++monitor_->counters.allocations;
  const uint64_t version = multiply.b_is_operand ? operands_.versions[multiply.b.buffer] : 0;
  if (!packed.ok()) {
    if (multiply.b_is_operand) packs_.Abandon(KeyOf(multiply), version);
    Fail(Annotate(packed.status(), StepText(task.step)));
    return;
  }
  lane.packed = std::make_shared<const PackedB>(*std::move(packed));
  if (multiply.b_is_operand) packs_.Fill(KeyOf(multiply), version, lane.packed);
  monitor_->WakeAll();
}

}  // namespace agmm
