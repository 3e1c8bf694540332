#include "kernels/device/epoch_run.h"

#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"

namespace agmm {

absl::Status EpochRun::Start(uint64_t epoch, const Operands& operands) {
  epoch_ = epoch;
  operands_ = operands;
  report_.status = absl::OkStatus();
  report_.stopped = {};
  report_.start_ns = MonotonicNanos();
  report_.end_ns = 0;
  report_.steps.assign(plan_.steps().size(), {});
  return plan_.CheckOperands(operands);
}

void EpochRun::Fail(absl::Status status) {
  if (failed()) return;
  report_.stopped = State(/*times=*/false);
  report_.status = std::move(status);
  OnFailure();
}

RankState EpochRun::State(bool times) const {
  RankState state;
  if (failed()) {
    state = report_.stopped;
  } else {
    state.epoch = epoch_;
    state.start_ns = report_.start_ns;
    state.at_ns = MonotonicNanos();
    state.lanes = Lanes();
  }
  state.in_flight = in_flight_;
  if (times) state.steps = Times();
  return state;
}

bool EpochRun::IsMissing(const Wait& wait) const {
  return !slots_.Holds(wait, epoch_) && !(wait.lag > 0 && AGMM_FAILPOINT("executor.skip_credit"));
}

bool EpochRun::MayBegin(const std::vector<Wait>& waits) const {
  // A test keeps all steps of the rank waiting.
  if (AGMM_FAILPOINT(absl::StrFormat("executor.hold_rank_%d", plan_.WorldRank(plan_.peers.self))))
    return false;
  return absl::c_none_of(waits, [this](const Wait& wait) { return IsMissing(wait); });
}

std::vector<Wait> EpochRun::Missing(const std::vector<Wait>& waits) const {
  std::vector<Wait> missing;
  absl::c_copy_if(waits, std::back_inserter(missing),
                  [this](const Wait& wait) { return IsMissing(wait); });
  return missing;
}

std::optional<absl::Duration> EpochRun::RandomDelay() {
  if (!AGMM_FAILPOINT("executor.delay")) return std::nullopt;
  thread_local uint64_t state = static_cast<uint64_t>(MonotonicNanos()) | 1;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % 2 == 0 ? absl::Microseconds(state / 2 % 1000) : absl::ZeroDuration();
}

Message EpochRun::BeginSend(int step, int part, bool push) {
  ++in_flight_;
  return {plan_.peers.plan, epoch_, plan_.peers.self, step, part, push};
}

void EpochRun::EndSend(int step, const absl::Status& status) {
  --in_flight_;
  if (!status.ok()) Fail(Annotate(status, plan_.NotSent(step, epoch_)));
}

}  // namespace agmm
