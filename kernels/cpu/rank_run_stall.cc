// The words for an epoch that did not end.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/base/units.h"
#include "kernels/cpu/rank_run.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

// "5.0 s", "40 ms".
std::string Seconds(int64_t since_ns) {
  const double seconds = (MonotonicNanos() - since_ns) * 1e-9;
  return seconds >= 1 ? absl::StrFormat("%.1f s", seconds) : FormatMicros(seconds * 1e6);
}

struct Producer {
  Rank rank = 0;
  const Step* step = nullptr;
};

// Who raises `slot`.
Producer ProducerOf(const Schedule& schedule, const Slot& slot) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (const Step& step : schedule.ranks[rank]) {
      for (const Slot& signal : step.signals) {
        if (signal == slot) return {static_cast<Rank>(rank), &step};
      }
    }
  }
  return {};
}

// A copy names the rank that it comes from.
bool NamesItsRank(const Step& step) {
  const auto* transfer = std::get_if<Transfer>(&step.op);
  return transfer != nullptr && !transfer->to.empty();
}

}  // namespace

int RankRun::WorldRank(Rank rank) const {
  return peers_.world_ranks.empty() ? rank : peers_.world_ranks[rank];
}

std::string RankRun::StepText(int step) const {
  return absl::StrFormat("rank %d lane %d step %d", WorldRank(peers_.self),
                         program_.steps[step].lane, step);
}

std::string RankRun::Stall() const {
  int64_t since_ns = 0;
  int waiting = -1, busy = -1;
  const Wait* missing = nullptr;
  for (size_t index = 0; index < lanes_.size(); ++index) {
    const int step = StepOf(index);
    if (step < 0) continue;
    if (lanes_[index].started) {
      busy = step;
      continue;
    }
    for (const Wait& wait : program_.steps[step].waits) {
      if (slots_.Holds(wait, epoch_)) continue;
      // Whoever waits longest comes nearest to the cause.
      if (waiting < 0 || lanes_[index].since_ns < since_ns) {
        waiting = step;
        since_ns = lanes_[index].since_ns;
        missing = &wait;
      }
      break;
    }
  }
  if (waiting >= 0) {
    const Producer producer = ProducerOf(schedule_, missing->slot);
    std::string what = "which no step raises";
    if (producer.step != nullptr) {
      what = Describe(problem_, *producer.step);
      if (!NamesItsRank(*producer.step))
        absl::StrAppend(&what, " at rank ", WorldRank(producer.rank));
    }
    return absl::StrFormat("%s waited %s for slot %d:%d (%s), epoch %d", StepText(waiting),
                           Seconds(since_ns), WorldRank(missing->slot.rank), missing->slot.index,
                           what, epoch_);
  }
  if (busy >= 0) {
    return absl::StrFormat("%s was still at work after %s (%s), epoch %d", StepText(busy),
                           Seconds(report_.steps[busy].start_ns),
                           Describe(problem_, schedule_.ranks[peers_.self][busy]), epoch_);
  }
  return absl::StrFormat("rank %d had %d messages to other nodes in flight after %s, epoch %d",
                         WorldRank(peers_.self), in_flight_, Seconds(report_.start_ns), epoch_);
}

}  // namespace agmm
