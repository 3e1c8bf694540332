#include "kernels/cuda/cuda_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/malloc_bytes.h"
#include "kernels/base/status.h"
#include "kernels/cuda/product_work.h"

namespace agmm {
namespace {

using Way = CudaCopy::Way;

// The time that a failed epoch has to end, in addition to that of its work: if a GPU that it waits
// for is lost, and otherwise.
constexpr int64_t kLostGraceNs = 2'000'000'000, kGraceNs = 10'000'000'000;

}  // namespace

CudaRun::CudaRun(const CudaPrepared& prepared, int words, const GpuClock& clock,
                 std::shared_ptr<GpuInbox> inbox)
    : EpochRun(prepared.plan(), prepared.slots()),
      prepared_(prepared),
      program_(prepared.program()),
      gpu_(prepared.gpu()),
      clock_(clock),
      work_(prepared, operands_),
      words_(prepared.words(words)),
      inbox_(std::move(inbox)),
      lanes_(program_.lanes.size()),
      submitted_(program_.units.size()) {}

int64_t CudaRun::size_bytes() const {
  // libstdc++ allocates room for an empty deque.
  constexpr int64_t kDequeBytes = MallocBytes(512) + MallocBytes(64);
  return MallocBytes(sizeof(CudaRun)) + MallocBytesOf(lanes_) + MallocBytesOf(report_.steps) +
         MallocBytes(submitted_.capacity() / 8) +
         kDequeBytes * static_cast<int64_t>(lanes_.size() + 1);
}

void CudaRun::Begin(uint64_t epoch, const Operands& operands, CUevent after) {
  absl::Status status = gpu_.health().lost();
  status.Update(Start(epoch, operands));
  begun_.emplace(program_.longest_ns);
  after_ = after;
  end_ = nullptr;
  phase_ = Phase::kSubmitting;
  unseen_ = false;
  for (Lane& lane : lanes_) {
    lane = {};
    lane.since_ns = report_.start_ns;
  }
  staged_.clear();
  arriving_.clear();
  submitted_.assign(program_.units.size(), false);
  arrived_ = has_launched_ = false;
  alone_ns_ = allowed_ns_ = 0;
  stuck_ = absl::OkStatus();
  words_.Begin(epoch);
  if (status.ok()) {
    Promise();
  } else {
    Fail(std::move(status));
  }
}

const LaunchUnit* CudaRun::NextUnit(const Lane& lane) const {
  const std::vector<int>& units = program_.lanes[IndexOf(lane)];
  return lane.position < units.size() ? &program_.units[units[lane.position]] : nullptr;
}

template <typename Visit>
void CudaRun::ForEachStep(const LaunchUnit& unit, const Visit& visit) {
  for (const int step : unit.steps) visit(step);
  if (!unit.product.has_value()) return;
  for (const ProductPiece& piece : unit.product->pieces) {
    for (const int send : piece.sends) visit(send);
  }
}

bool CudaRun::IsCarried(int step, size_t part) const {
  const LaunchUnit& unit = prepared_.UnitOf(step);
  return part == 0 && unit.product.has_value() && program_.steps[step].copy() != nullptr;
}

void CudaRun::Promise() {
  for (const LaunchUnit& unit : program_.units) {
    ForEachStep(unit, [&](int step) {
      if (!IsCarried(step, 0)) return;
      const Signalled& signal = program_.steps[step].signals[0];
      static_cast<EventExecutor*>(signal.executor)->Recorded(signal.slot, epoch_, nullptr);
    });
  }
}

std::byte* CudaRun::StagedFor(int index) const {
  const auto staged = staged_.find(index);
  return staged == staged_.end() ? nullptr : staged->second.data;
}

bool CudaRun::TakeStaging(int index) {
  const CudaCopy* const copy = program_.steps[index].copy();
  if (copy == nullptr || copy->staged_bytes == 0) return true;
  std::byte* const data = prepared_.staging().Take(copy->staged_bytes);
  if (data == nullptr) return false;
  const auto users = std::count_if(copy->ways.begin(), copy->ways.end(),
                                   [](Way way) { return way != Way::kDirect; });
  staged_[index] = {data, static_cast<int>(users)};
  return true;
}

bool CudaRun::MaySubmit(const LaunchUnit& unit) {
  if (!MayBegin(unit.waits)) return false;
  return !unit.product.has_value() || !unit.product->in_group || MaySubmitWithGroup(unit);
}

bool CudaRun::HasGroupUnits(int lane, size_t position) const {
  const std::vector<int>& units = program_.lanes[lane];
  return std::any_of(units.begin() + position, units.end(), [&](int unit) {
    const auto& product = program_.units[unit].product;
    return product.has_value() && product->in_group;
  });
}

bool CudaRun::MaySubmitWithGroup(const LaunchUnit& unit) {
  if (!arrived_) {
    // Steps of other lanes may be in front of the work for which this kernel waits, so they go
    // first.
    for (const Lane& lane : lanes_)
      if (static_cast<int>(IndexOf(lane)) != unit.lane && NextUnit(lane) != nullptr) return false;
    // Once the group is open, nothing holds up the rank until it has submitted its kernels.
    for (size_t at = lanes_[unit.lane].position; HasGroupUnits(unit.lane, at); ++at)
      if (!MayBegin(program_.units[program_.lanes[unit.lane][at]].waits)) return false;
    arrived_ = true;
    prepared_.group().Arrive(epoch_, static_cast<int>(program_.group.size()));
  }
  // A test lets the kernels of other ranks wait for this one.
  if (AGMM_FAILPOINT(
          absl::StrFormat("executor.hold_kernels_%d", plan_.WorldRank(plan_.peers.self))))
    return false;
  return prepared_.group().IsOpen(epoch_);
}

bool CudaRun::WaitsForGroup() const {
  return has_launched_ && !failed() && !prepared_.group().HaveAllSubmitted(epoch_);
}

bool CudaRun::Submit() {
  bool progressed = false;
  for (Lane& lane : lanes_) {
    for (const LaunchUnit* unit = NextUnit(lane); unit != nullptr && !failed() && !WaitsForGroup();
         unit = NextUnit(lane)) {
      if (!MaySubmit(*unit) || !TakeStaging(unit->steps[0])) break;
      if (const auto delay = RandomDelay()) absl::SleepFor(*delay);
      absl::Status status = SubmitUnit(*unit);
      const int index = static_cast<int>(IndexOf(*unit));
      // Recorded or not, the GPU may have part of the unit.
      lane.tail = EventsOf(index).end;
      if (!status.ok()) {
        RecordAnyway(gpu_, lane.tail, prepared_.stream(unit->lane));
        Fail(Annotate(status, plan_.StepName(unit->steps[0])));
        return true;
      }
      bool has_messages = false;
      ForEachStep(*unit, [&](int step) { has_messages |= program_.steps[step].has_messages(); });
      if (has_messages) lane.messages.push_back(index);
      ++lane.position;
      lane.since_ns = MonotonicNanos();
      if (arrived_ && !has_launched_ && !HasGroupUnits(unit->lane, lane.position)) {
        has_launched_ = true;
        prepared_.group().Submitted(epoch_);
      }
      progressed = true;
    }
  }
  return progressed;
}

bool CudaRun::has_units() const {
  return !failed() && std::any_of(lanes_.begin(), lanes_.end(),
                                  [&](const Lane& lane) { return NextUnit(lane) != nullptr; });
}

bool CudaRun::Advance(CUstream order, CUevent end) {
  const bool submitted = Submit();
  if (has_units() || WaitsForGroup()) return submitted;
  phase_ = Phase::kDraining;
  if (absl::Status status = RecordEnd(order, end); !status.ok()) {
    Fail(std::move(status));
  } else {
    end_ = end;
  }
  return true;
}

absl::Status CudaRun::SubmitUnit(const LaunchUnit& unit) {
  const CUstream stream = prepared_.stream(unit.lane);
  if (after_ != nullptr && lanes_[unit.lane].tail == nullptr && program_.begins[unit.lane])
    AGMM_CUDA_RETURN(gpu_, cuStreamWaitEvent, stream, after_, CU_EVENT_WAIT_DEFAULT);
  for (const Wait& wait : unit.events) {
    if (wait.lag > 0 && AGMM_FAILPOINT("executor.skip_credit")) continue;
    const CUevent event = prepared_.slots().EventOf(wait, epoch_);
    if (event == nullptr) continue;
    AGMM_RETURN_IF_ERROR(prepared_.Wait(stream, event));
  }
  const int index = static_cast<int>(IndexOf(unit));
  const CudaPrepared::UnitEvents& events = EventsOf(index);
  AGMM_CUDA_RETURN(gpu_, cuEventRecord, events.begin, stream);
  AGMM_RETURN_IF_ERROR(PutUnit(unit));
  AGMM_CUDA_RETURN(gpu_, cuEventRecord, events.end, stream);
  submitted_[index] = true;
  for (const int step : unit.steps) {
    for (const CudaPrepared::Through& half : prepared_.through(step))
      AGMM_RETURN_IF_ERROR(Arrive(step, half));
  }
  ForEachStep(unit, [&](int step) { Raise(step); });
  return absl::OkStatus();
}

absl::Status CudaRun::PutUnit(const LaunchUnit& unit) {
  if (unit.product.has_value()) {
    const int index = static_cast<int>(IndexOf(unit));
    AGMM_RETURN_IF_ERROR(
        PutProducts(prepared_, unit, epoch_, operands_, words_, prepared_.trace(index, epoch_)));
  } else {
    AGMM_RETURN_IF_ERROR(work_.Put(unit.steps[0], StagedFor(unit.steps[0])));
  }
  absl::Status status;
  ForEachStep(unit, [&](int step) {
    for (size_t part = 0; part < program_.steps[step].signals.size(); ++part) {
      if (IsCarried(step, part) || program_.steps[step].goes(part, Way::kThrough)) continue;
      status.Update(StoreSlot(gpu_, step, part, prepared_.stream(unit.lane)));
    }
  });
  return status;
}

absl::Status CudaRun::StoreSlot(Gpu& gpu, int step, size_t part, CUstream stream) const {
  const Signalled& signal = program_.steps[step].signals[part];
  if (signal.executor == nullptr) return absl::OkStatus();
  const CUdeviceptr slot = static_cast<EventExecutor*>(signal.executor)->PolledSlot(signal.slot);
  if (slot == 0) return absl::OkStatus();
  AGMM_CUDA_RETURN(gpu, cuMemcpyHtoDAsync, slot, words_.epoch(), sizeof(uint64_t), stream);
  return absl::OkStatus();
}

void CudaRun::RecordAnyway(Gpu& gpu, CUevent event, CUstream stream) {
  const CUresult result = gpu.driver().cuEventRecord(event, stream);
  if (result == CUDA_SUCCESS) return;
  static_cast<void>(gpu.Failed(result, "cuEventRecord"));  // records the loss of a lost GPU
  unseen_ |= gpu.health().lost().ok();
}

absl::Status CudaRun::Arrive(int index, const CudaPrepared::Through& half) {
  Gpu& target = half.stream->gpu();
  const OnGpu there(target);
  const CUevent arrived = half.arrived[epoch_ % kEventSets];
  const CUstream stream = half.stream->get();
  AGMM_RETURN_IF_ERROR(prepared_.Wait(stream, EventsOf(program_.unit_of_step[index]).end));
  absl::Status status = work_.PutHalf(index, half, StagedFor(index));
  if (status.ok()) status = StoreSlot(target, index, half.to, stream);
  if (status.ok())
    status = target.Check(target.driver().cuEventRecord(arrived, stream), "cuEventRecord");
  // A part of it may have been submitted all the same.
  if (!status.ok()) RecordAnyway(target, arrived, stream);
  arriving_.push_back({index, arrived, &target});
  return status;
}

void CudaRun::Raise(int index) {
  const CudaStep& step = program_.steps[index];
  for (size_t part = 0; part < step.signals.size(); ++part) {
    const Signalled& signal = step.signals[part];
    if (signal.executor == nullptr || IsCarried(index, part)) continue;
    CUevent event = EventsOf(program_.unit_of_step[index]).end;
    if (step.goes(part, Way::kThrough)) {
      for (const CudaPrepared::Through& half : prepared_.through(index))
        if (half.to == static_cast<int>(part)) event = half.arrived[epoch_ % kEventSets];
    }
    static_cast<EventExecutor*>(signal.executor)->Recorded(signal.slot, epoch_, event);
  }
}

absl::Status CudaRun::RecordEnd(CUstream order, CUevent end) {
  for (const Lane& lane : lanes_) {
    if (lane.tail != nullptr && !IsRelay(lane))
      AGMM_CUDA_RETURN(gpu_, cuStreamWaitEvent, order, lane.tail, CU_EVENT_WAIT_DEFAULT);
  }
  AGMM_CUDA_RETURN(gpu_, cuEventRecord, end, order);
  return absl::OkStatus();
}

bool CudaRun::Done(Gpu& gpu, CUevent event) {
  const CUresult result = gpu.driver().cuEventQuery(event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  // Work of a lost GPU never ends.
  if (result != CUDA_SUCCESS) Fail(gpu.Failed(result, "cuEventQuery"));
  return true;
}

bool CudaRun::HasArrived(const Arriving& arriving) {
  // Uses the event's own context, because a call in another one may return an error of that one.
  const OnGpu there(*arriving.gpu);
  return Done(*arriving.gpu, arriving.event);
}

bool CudaRun::IsAtWork(int unit) const {
  return submitted_[unit] && gpu_.health().lost().ok() &&
         gpu_.driver().cuEventQuery(EventsOf(unit).end) == CUDA_ERROR_NOT_READY;
}

bool CudaRun::Poll() {
  bool progressed = false;
  if (absl::Status lost = prepared_.LostGpu(); !lost.ok()) Fail(std::move(lost));
  for (Lane& lane : lanes_) {
    while (!lane.messages.empty() && Done(EventsOf(lane.messages.front()).end)) {
      ForEachStep(program_.units[lane.messages.front()], [&](int step) { SendAll(step); });
      lane.messages.pop_front();
      progressed = true;
    }
  }
  while (!arriving_.empty() && HasArrived(arriving_.front())) {
    Release(arriving_.front().step);
    arriving_.pop_front();
    progressed = true;
  }
  return progressed;
}

bool CudaRun::has_sequels() const {
  return !arriving_.empty() || std::any_of(lanes_.begin(), lanes_.end(),
                                           [](const Lane& lane) { return !lane.messages.empty(); });
}

void CudaRun::SendAll(int index) {
  const CudaStep& step = program_.steps[index];
  for (size_t part = 0; part < step.signals.size(); ++part) {
    if (step.goes(part, Way::kSend)) {
      const CudaCopy& copy = *step.copy();
      if (failed()) {
        Release(index);
      } else {
        Send(index, static_cast<int>(part), copy.push[part],
             {staged_[index].data, copy.rows, copy.row_bytes, copy.row_bytes});
      }
    } else if (step.signals[part].executor == nullptr && !failed()) {
      Send(index, static_cast<int>(part), /*push=*/false, {});
    }
  }
}

void CudaRun::Send(int index, int part, bool push, const Rows& rows) {
  const bool carries_bytes = rows.rows > 0;
  plan_.peers.transport->Send(
      program_.steps[index].signals[part].node, BeginSend(index, part, push), rows,
      // The run cannot end before this, because it counts the message as in flight.
      [this, inbox = inbox_, index, carries_bytes](absl::Status status) {
        inbox->Post([this, index, carries_bytes, status = std::move(status)] {
          SendDone(index, carries_bytes, status);
        });
      });
}

void CudaRun::SendDone(int step, bool carried_bytes, const absl::Status& status) {
  if (carried_bytes) Release(step);
  EndSend(step, status);
}

void CudaRun::Release(int step) {
  const auto staged = staged_.find(step);
  if (staged == staged_.end() || --staged->second.users > 0) return;
  prepared_.staging().Give(staged->second.data);
  staged_.erase(staged);
}

bool CudaRun::IsIdle() {
  if (has_sequels()) return false;
  // A lost GPU does not run any work.
  if (!gpu_.health().lost().ok()) return true;
  if (unseen_) return false;
  if (end_ != nullptr && !Done(end_)) return false;
  return std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
    const bool joined = end_ != nullptr && !IsRelay(lane);
    return lane.tail == nullptr || joined || Done(lane.tail);
  });
}

EpochRun::End CudaRun::Settle(int64_t now_ns) {
  if (phase_ == Phase::kSubmitting || in_flight_ > 0) return End::kNotYet;
  if (phase_ == Phase::kAbandoned || IsIdle()) return End::kOver;
  if (!failed()) return End::kNotYet;
  if (alone_ns_ == 0) {
    alone_ns_ = now_ns;
    allowed_ns_ = WorkClock::begun_ns();
  }
  const absl::Status lost = prepared_.LostGpu();
  int64_t grace_ns = lost.ok() ? kGraceNs : kLostGraceNs;
  if (AGMM_FAILPOINT("executor.short_grace")) grace_ns /= 10;
  if (now_ns - alone_ns_ < grace_ns + allowed_ns_) return End::kNotYet;
  const std::string why = absl::StrFormat(
      "%s has not ended its work %.1f s after the epoch failed (limit %.1f s); restart the daemon",
      gpu_.where(), (now_ns - report_.stopped.at_ns) * 1e-9, (grace_ns + allowed_ns_) * 1e-9);
  if (lost.ok())
    report_.status = WithMessage(report_.status, absl::StrCat(report_.status.message(), "; ", why));
  stuck_ = absl::UnavailableError(lost.ok() ? why : absl::StrCat(why, ": ", lost.message()));
  return End::kStuck;
}

void CudaRun::Abandon(const absl::Status& why) {
  Fail(why);
  phase_ = Phase::kAbandoned;
}

std::vector<StepTime> CudaRun::Times() const {
  std::vector<StepTime> times(program_.steps.size());
  const int64_t now_ns = MonotonicNanos();
  const auto at = [&](CUevent event) {
    const int64_t ns = clock_.HostNanos(event);
    return ns == 0 ? 0 : std::clamp(ns, report_.start_ns, now_ns);
  };
  for (size_t index = 0; index < submitted_.size(); ++index) {
    if (!submitted_[index]) continue;
    const CudaPrepared::UnitEvents& events = EventsOf(static_cast<int>(index));
    const StepTime time = {at(events.begin), at(events.end)};
    ForEachStep(program_.units[index], [&](int step) { times[step] = time; });
    TimesOfBlocks(static_cast<int>(index), time, &times);
  }
  return times;
}

void CudaRun::TimesOfBlocks(int index, const StepTime& whole, std::vector<StepTime>* times) const {
  const sm90::TileTrace* const trace = prepared_.trace(index, epoch_);
  if (trace == nullptr || whole.start_ns == 0) return;
  const ProductLaunch& launch = *program_.units[index].product;
  const std::vector<BlockTime> blocks = BlockTimes(launch, trace);
  // The GPU's clock, tied to that of the host by the event at the unit's begin.
  uint64_t first = ~uint64_t{0};
  for (const BlockTime& block : blocks) {
    if (block.start_ns > 0) first = std::min(first, block.start_ns);
  }
  const auto at = [&](uint64_t ns) {
    return ns == 0 ? 0 : whole.start_ns + static_cast<int64_t>(ns - first);
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    const StepTime time = {at(blocks[i].start_ns), at(blocks[i].end_ns)};
    const ProductBlock& block = launch.blocks[i];
    for (int piece = block.first_piece; piece < block.first_piece + block.pieces; ++piece) {
      (*times)[launch.pieces[piece].step] = time;
      for (const int send : launch.pieces[piece].sends) (*times)[send] = time;
    }
  }
}

void CudaRun::OnFailure() {
  words_.Abort();
  if (arrived_) prepared_.group().Withdraw(epoch_);
}

const EpochReport& CudaRun::Close() {
  if (arrived_) prepared_.group().Over(epoch_);
  report_.end_ns = MonotonicNanos();
  if (phase_ != Phase::kAbandoned) {
    if (gpu_.health().lost().ok()) report_.steps = Times();
    for (const auto& [step, staged] : staged_) prepared_.staging().Give(staged.data);
  }
  // The GPU may still use the pinned memory of an abandoned run, so it is never given to others.
  staged_.clear();
  begun_.reset();
  return report_;
}

std::vector<LaneState> CudaRun::Lanes() const {
  std::vector<LaneState> states;
  for (const Lane& lane : lanes_) {
    const std::vector<int>& units = program_.lanes[IndexOf(lane)];
    // A stream's units end in their order.
    const auto submitted = units.begin() + lane.position;
    const auto at_work =
        std::partition_point(units.begin(), submitted, [&](int unit) { return !IsAtWork(unit); });
    if (at_work == units.end()) continue;
    const LaunchUnit& unit = program_.units[*at_work];
    LaneState& state = states.emplace_back();
    state.step = unit.steps[0];
    state.since_ns = lane.since_ns;
    if (at_work != submitted) {
      DescribeAtWork(unit, &state);
      continue;
    }
    state.missing = Missing(unit.waits);
    if (state.missing.empty() && arrived_ && !has_launched_) DescribeGroup(unit, &state);
    state.ready = state.missing.empty();
  }
  return states;
}

void CudaRun::DescribeGroup(const LaunchUnit& unit, LaneState* state) const {
  if (!unit.product.has_value()) return;
  for (const ProductPiece& piece : unit.product->pieces) {
    for (const int slot : piece.slots) {
      // A kernel has only promised to raise it, so there is no event.
      const Wait wait = {{plan_.peers.self, slot}};
      if (prepared_.slots().EventOf(wait, epoch_) != nullptr) continue;
      state->step = piece.step;
      state->missing = {wait};
      return;
    }
  }
}

void CudaRun::DescribeAtWork(const LaunchUnit& unit, LaneState* state) const {
  if (!unit.product.has_value()) return;
  const ProductLaunch& launch = *unit.product;
  const auto waits_for = [&](const ProductPiece& piece, int slot) {
    state->step = piece.step;
    state->missing = {{{plan_.peers.self, slot}}};
  };
  const sm90::TileTrace* const trace = prepared_.trace(static_cast<int>(IndexOf(unit)), epoch_);
  if (trace != nullptr) {
    const std::vector<BlockTime> blocks = BlockTimes(launch, trace);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const ProductPiece& piece = launch.pieces[launch.blocks[i].first_piece];
      if (!blocks[i].waits || piece.slots.empty()) continue;
      return waits_for(piece, piece.slots[0]);
    }
  }
  // Without a trace, only the ends of copies are known.
  for (const ProductPiece& piece : launch.pieces) {
    for (const int slot : piece.slots) {
      const Wait wait = {{plan_.peers.self, slot}};
      const CUevent event = prepared_.slots().EventOf(wait, epoch_);
      if (event == nullptr || gpu_.driver().cuEventQuery(event) != CUDA_ERROR_NOT_READY) continue;
      return waits_for(piece, slot);
    }
  }
}

}  // namespace agmm
