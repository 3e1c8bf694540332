#include "kernels/cpu/rank_run.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/clock.h"
#include "kernels/base/malloc_bytes.h"
#include "kernels/base/status.h"
#include "kernels/cpu/piece_math.h"

namespace agmm {
namespace {

// About ten milliseconds of a core. Messages that arrive meanwhile wait in the buffers of the
// sockets and are cheaper to fetch in one go (NOTES.md).
constexpr double kLongFlops = 4e9;
// The same where a core is free, on which the transport's own thread works meanwhile. A shorter
// multiply ends before that thread has woken up.
constexpr double kLongFlopsWithSpareCore = 1e7;

const CopyOp* AsCopy(const ProgramStep& step) { return std::get_if<CopyOp>(&step.op); }
const GemmOp* AsMultiply(const ProgramStep& step) { return std::get_if<GemmOp>(&step.op); }

}  // namespace

RankRun::RankRun(std::shared_ptr<Monitor> monitor, const Program& program, const RankPlan& plan,
                 const Slots& slots, PackCache& packs)
    : EpochRun(plan, slots),
      monitor_(std::move(monitor)),
      program_(program),
      packs_(packs),
      lanes_(program.lanes.size()) {
  // All are allocated before any is counted, because an allocation may fail.
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    lanes_[lane].chip.Get(program.chip_bytes[lane]);
    lanes_[lane].packed_b.Get(program.packed_bytes[lane]);
  }
  arrived_b_.resize(program.steps.size());
  std::map<std::pair<int, const Matmul*>, std::shared_ptr<PackedB>> views;
  for (size_t i = 0; i < program.steps.size(); ++i) {
    const ProgramStep& step = program.steps[i];
    const GemmOp* multiply = AsMultiply(step);
    if (multiply == nullptr || multiply->b_is_operand) continue;
    std::shared_ptr<PackedB>& view = views[{step.lane, multiply->full.get()}];
    if (view == nullptr)
      view = std::make_shared<PackedB>(multiply->full->PackedAt(lanes_[step.lane].packed_b.Get(0)));
    arrived_b_[i] = view;
  }
  for (const Lane& lane : lanes_) {
    for (const Scratch* scratch : {&lane.chip, &lane.packed_b}) {
      monitor_->counters.scratch_bytes += scratch->bytes();
      monitor_->counters.allocations += scratch->allocations();
    }
  }
}

RankRun::~RankRun() {
  for (const Lane& lane : lanes_)
    monitor_->counters.scratch_bytes -= lane.chip.bytes() + lane.packed_b.bytes();
}

int64_t RankRun::size_bytes() const {
  int64_t bytes = MallocBytesOf(lanes_) + MallocBytesOf(arrived_b_) + MallocBytesOf(report_.steps);
  for (const Lane& lane : lanes_) bytes += MallocBytesOf(lane.parts_left);
  return bytes;
}

void RankRun::Begin(uint64_t epoch, const Operands& operands) {
  absl::Status status = Start(epoch, operands);
  for (Lane& lane : lanes_) lane.Reach(0, report_.start_ns);
  if (!status.ok()) Fail(std::move(status));
}

int RankRun::StepOf(size_t lane) const {
  const std::vector<int>& steps = program_.lanes[lane];
  return lanes_[lane].position < steps.size() ? steps[lanes_[lane].position] : -1;
}

std::optional<Task> RankRun::Next() {
  if (failed()) return std::nullopt;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    const int step = StepOf(lane);
    if (step < 0 || lanes_[lane].phase != Lane::Phase::kWaiting ||
        !MayBegin(program_.steps[step].waits))
      continue;
    lanes_[lane].StartStep(program_.steps[step]);
    report_.steps[step].start_ns = MonotonicNanos();
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
    for (int kind = Task::kFinish; kind <= Task::kMultiply; ++kind) {
      if (HasTaskOf(lane, static_cast<Task::Kind>(kind))) return true;
    }
  }
  return false;
}

bool RankRun::HasTaskOf(size_t lane, Task::Kind kind) const {
  if (lanes_[lane].phase != Lane::Phase::kRunning) return false;
  const ProgramStep& step = program_.steps[StepOf(lane)];
  if (!lanes_[lane].Has(step, kind)) return false;
  if (kind != Task::kPack) return true;
  const GemmOp& multiply = *AsMultiply(step);
  return !multiply.b_is_operand ||
         !packs_.Find(KeyOf(multiply), operands_.versions[multiply.b.buffer]).busy;
}

std::optional<Task> RankRun::TaskOf(size_t lane, Task::Kind kind) {
  if (!HasTaskOf(lane, kind)) return std::nullopt;
  const int index = StepOf(lane);
  const ProgramStep& step = program_.steps[index];
  if (const GemmOp* multiply = AsMultiply(step); kind == Task::kPack && multiply->b_is_operand) {
    const uint64_t version = operands_.versions[multiply->b.buffer];
    lanes_[lane].packed = packs_.Find(KeyOf(*multiply), version).packed;
    if (lanes_[lane].packed != nullptr) return std::nullopt;
    packs_.Claim(KeyOf(*multiply), version);
  }
  Task task = lanes_[lane].Take(step, kind);
  task.lane = static_cast<int>(lane);
  task.step = index;
  return task;
}

PackCache::Key RankRun::KeyOf(const GemmOp& multiply) const {
  const HeapPlace& b = multiply.b;
  return {MatrixAt(b, operands_, 0).data,
          b.pitch_bytes,
          multiply.n,
          multiply.k,
          b.dtype,
          multiply.kernel};
}

EpochRun::End RankRun::Settle() const {
  if (working_ > 0 || in_flight_ > 0) return End::kNotYet;
  if (failed()) return End::kOver;
  for (size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (StepOf(lane) >= 0) return End::kNotYet;
  }
  return End::kOver;
}

const EpochReport& RankRun::Close() {
  report_.end_ns = MonotonicNanos();
  for (Lane& lane : lanes_) lane.packed.reset();
  return report_;
}

bool RankRun::IsLong(const Task& task, bool has_spare_core) const {
  if (task.kind == Task::kPack) return true;
  const auto* multiply = AsMultiply(program_.steps[task.step]);
  return multiply != nullptr && 2.0 * task.piece.rows * multiply->n * multiply->k >
                                    (has_spare_core ? kLongFlopsWithSpareCore : kLongFlops);
}

void RankRun::DelayRandomly(std::unique_lock<std::mutex>& lock) {
  const std::optional<absl::Duration> delay = RandomDelay();
  if (!delay.has_value()) return;
  lock.unlock();
  absl::SleepFor(*delay);
  lock.lock();
}

void RankRun::Execute(const Task& task, GemmWorker& worker, std::unique_lock<std::mutex>& lock) {
  const ProgramStep& step = program_.steps[task.step];
  Lane& lane = lanes_[task.lane];
  DelayRandomly(lock);
  switch (task.kind) {
    case Task::kFinish: Finish(task, lock); break;
    case Task::kSend: Send(task, lock); break;
    case Task::kCopy: Copy(task, lock); break;
    case Task::kPack: Pack(task, worker, lock); break;
    case Task::kReduce: {
      lock.unlock();
      ReducePiece(std::get<ReduceOp>(step.op), task.piece, operands_, program_.zero_denormals);
      lock.lock();
      --lane.pieces_left;
      break;
    }
    case Task::kMultiply: {
      lock.unlock();
      const auto& multiply = std::get<GemmOp>(step.op);
      if (multiply.finish) CommitPages(multiply.out, task.piece);
      absl::Status status =
          MultiplyPiece(multiply, task.piece, operands_, *lane.packed, lane.chip.Get(0), worker);
      lock.lock();
      --lane.pieces_left;
      if (!status.ok()) Fail(Annotate(status, plan_.StepName(task.step)));
      break;
    }
  }
  --working_;
}

void RankRun::Finish(const Task& task, std::unique_lock<std::mutex>& lock) {
  const ProgramStep& step = program_.steps[task.step];
  const CopyOp* copy = AsCopy(step);
  const size_t own = copy != nullptr ? copy->to.size() : 0;
  // A copy ended with its last `to`, before the slot of that `to` was raised.
  if (own == 0) report_.steps[task.step].end_ns = MonotonicNanos();
  for (size_t part = own; part < step.signals.size(); ++part) Raise(task.step, part, lock);
  Lane& lane = lanes_[task.lane];
  lane.Reach(lane.position + 1, MonotonicNanos());
}

void RankRun::Send(const Task& task, std::unique_lock<std::mutex>& lock) {
  if (failed()) return;
  const CopyOp& copy = *AsCopy(program_.steps[task.step]);
  const Rows rows{MatrixAt(copy.from, operands_, 0).data, copy.rows,
                  copy.cols * SizeOf(copy.from.dtype), copy.from.pitch_bytes, copy.padded};
  SendRows(task.step, task.part, copy.push[task.part], rows, lock);
}

void RankRun::SendRows(int step, int part, bool push, const Rows& rows,
                       std::unique_lock<std::mutex>& lock) {
  const Message message = BeginSend(step, part, push);
  lock.unlock();
  plan_.peers.transport->Send(
      program_.steps[step].signals[part].node, message, rows,
      [this, monitor = monitor_, step, carries_bytes = rows.rows > 0](absl::Status status) {
        std::lock_guard guard(monitor->mutex);
        SendDone(step, carries_bytes, status);
      });
  lock.lock();
}

void RankRun::SendDone(int step, bool carries_bytes, const absl::Status& status) {
  if (carries_bytes) {
    --lanes_[program_.steps[step].lane].sends_left;
    report_.steps[step].end_ns = MonotonicNanos();
  }
  EndSend(step, status);
  monitor_->WakeOne();
}

void RankRun::Copy(const Task& task, std::unique_lock<std::mutex>& lock) {
  const CopyOp& copy = *AsCopy(program_.steps[task.step]);
  Lane& lane = lanes_[task.lane];
  lock.unlock();
  CopyRows(MatrixAt(copy.from, operands_, task.piece.row),
           MatrixAt(copy.to[task.piece.target], operands_, task.piece.row), task.piece.rows,
           copy.cols);
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
  DelayRandomly(lock);
  if (signalled.executor == nullptr)
    return SendRows(step_index, static_cast<int>(part), /*push=*/false, {}, lock);
  lock.unlock();
  signalled.executor->Signal(signalled.slot, epoch_);
  lock.lock();
}

void RankRun::Pack(const Task& task, GemmWorker& worker, std::unique_lock<std::mutex>& lock) {
  const GemmOp& multiply = *AsMultiply(program_.steps[task.step]);
  Lane& lane = lanes_[task.lane];
  const std::shared_ptr<PackedB>& arrived = arrived_b_[task.step];
  lock.unlock();
  std::shared_ptr<const PackedB> packed = arrived;
  absl::Status status;
  if (arrived != nullptr) {
    status =
        multiply.full->PackAgain(MatrixAt(multiply.b, operands_, 0), worker, worker.a, *arrived);
  } else if (auto made = multiply.full->Pack(MatrixAt(multiply.b, operands_, 0), worker);
             made.ok()) {
    packed = std::make_shared<const PackedB>(*std::move(made));
  } else {
    status = made.status();
  }
  lock.lock();
  lane.phase = Lane::Phase::kRunning;
  ++monitor_->counters.packs;
  const uint64_t version = multiply.b_is_operand ? operands_.versions[multiply.b.buffer] : 0;
  if (!status.ok()) {
    if (multiply.b_is_operand) packs_.Abandon(KeyOf(multiply), version);
    Fail(Annotate(status, plan_.StepName(task.step)));
    return;
  }
  if (arrived == nullptr) ++monitor_->counters.allocations;
  lane.packed = std::move(packed);
  if (multiply.b_is_operand) packs_.Fill(KeyOf(multiply), version, lane.packed);
  monitor_->WakeAll();
}

void RankRun::CommitPages(const HeapPlace& result, const Piece& piece) const {
  Heap* const heap = plan_.peers.heaps[plan_.peers.self];
  if (result.heap != heap) return;
  const int64_t begin = result.BufferOffset(operands_),
                end = begin + plan_.BufferBytes(result.buffer);
  const int64_t at = begin + result.offset_bytes + piece.row * result.pitch_bytes;
  heap->CommitPages({at, at + piece.rows * result.pitch_bytes}, {begin, end});
}

std::vector<LaneState> RankRun::Lanes() const {
  // Next, which starts every step whose waits are over, last found one at this time.
  int64_t last_start_ns = 0;
  for (size_t index = 0; index < lanes_.size(); ++index) {
    const int step = StepOf(index);
    if (step >= 0 && lanes_[index].phase != Lane::Phase::kWaiting)
      last_start_ns = std::max(last_start_ns, report_.steps[step].start_ns);
  }
  std::vector<LaneState> states;
  for (size_t index = 0; index < lanes_.size(); ++index) {
    LaneState state;
    state.step = StepOf(index);
    if (state.step < 0) continue;
    if (lanes_[index].phase == Lane::Phase::kWaiting) {
      state.since_ns = lanes_[index].since_ns;
      state.missing = Missing(program_.steps[state.step].waits);
      if (state.missing.empty()) state.since_ns = std::max(state.since_ns, last_start_ns);
    } else {
      state.since_ns = report_.steps[state.step].start_ns;
    }
    state.ready = state.missing.empty() && !lanes_[index].IsTaken();
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace agmm
