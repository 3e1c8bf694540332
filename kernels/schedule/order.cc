#include "kernels/schedule/order.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// Calls `use(wait)` for each wait that gates the step: its own, and those of its transfers.
template <typename Use>
void ForEachGatingWait(const Schedule& schedule, Rank rank, int step,
                       const std::vector<int>& carried, Use use) {
  for (const Wait& wait : schedule.ranks[rank][step].waits) use(wait);
  for (int transfer : carried) {
    for (const Wait& wait : schedule.ranks[rank][transfer].waits) use(wait);
  }
}

}  // namespace

std::string StepName(const Schedule& schedule, Rank rank, int step) {
  return absl::StrFormat("rank %d lane %d step %d", rank, schedule.ranks[rank][step].lane, step);
}

bool IsArrival(const Step& step, Rank rank, int position) {
  const auto* transfer = std::get_if<Transfer>(&step.op);
  return transfer != nullptr && position < static_cast<int>(transfer->to.size()) &&
         transfer->to[position].rank != rank;
}

absl::StatusOr<Order> Order::Build(const Schedule& schedule) {
  Order order;
  AGMM_RETURN_IF_ERROR(order.Index(schedule));
  AGMM_RETURN_IF_ERROR(order.Sort(schedule));
  order.Clock(schedule);
  return order;
}

absl::Status Order::Index(const Schedule& schedule) {
  const int rank_count = static_cast<int>(schedule.ranks.size());
  ranks_.resize(rank_count);
  for (Rank rank = 0; rank < rank_count; ++rank) {
    const std::vector<Step>& steps = schedule.ranks[rank];
    RankOrder& out = ranks_[rank];
    out.first_chain = chains_;
    out.first_node = nodes_;
    out.steps = static_cast<int>(steps.size());
    out.carried.resize(steps.size());
    out.lane_length.resize(1, 0);
    std::vector<int> last(1, -1);
    for (int s = 0; s < out.steps; ++s) {
      const int lane = steps[s].lane;
      const auto* transfer = std::get_if<Transfer>(&steps[s].op);
      const int carrier = transfer != nullptr ? transfer->carrier : -1;
      if (lane < 0 || carrier < -1 || carrier >= out.steps) {
        return absl::InvalidArgumentError(
            absl::StrFormat("rank %d step %d has lane %d and carrier %d; lanes start at 0, and the "
                            "rank has %d steps",
                            rank, s, lane, carrier, out.steps));
      }
      if (carrier >= 0) out.carried[carrier].push_back(s);
      out.lane_length.resize(std::max<size_t>(out.lane_length.size(), lane + 1), 0);
      last.resize(out.lane_length.size(), -1);
      out.lane.push_back(lane);
      out.position.push_back(out.lane_length[lane]++);
      out.predecessor.push_back(last[lane]);
      last[lane] = s;
      for (int i = 0; i < static_cast<int>(steps[s].signals.size()); ++i) {
        const Slot& slot = steps[s].signals[i];
        if (slot.rank < 0 || slot.rank >= rank_count) {
          return absl::InvalidArgumentError(
              absl::StrFormat("%s signals slot %d:%d; ranks are 0 to %d",
                              StepName(schedule, rank, s), slot.rank, slot.index, rank_count - 1));
        }
        const auto [at, is_new] =
            producers_.try_emplace(slot, Event{rank, s, IsArrival(steps[s], rank, i) ? i : -1});
        if (!is_new) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "%s signals slot %d:%d, which %s signals already; a slot has one producer",
              StepName(schedule, rank, s), slot.rank, slot.index,
              StepName(schedule, at->second.rank, at->second.step)));
        }
      }
    }
    chains_ += static_cast<int>(out.lane_length.size());
    nodes_ += 2 * (out.steps + 1);
  }
  for (Rank rank = 0; rank < rank_count; ++rank) {
    for (int s = 0; s < ranks_[rank].steps; ++s) {
      for (const Wait& wait : schedule.ranks[rank][s].waits) {
        if (producers_.count(wait.slot) == 0) {
          return absl::InvalidArgumentError(
              absl::StrFormat("%s waits for slot %d:%d, which no step signals",
                              StepName(schedule, rank, s), wait.slot.rank, wait.slot.index));
        }
      }
      ForEachGatingWait(schedule, rank, s, ranks_[rank].carried[s], [&](const Wait& wait) {
        const Event& from = producers_[wait.slot];
        if (from.to < 0) return;
        ranks_[from.rank].arrivals[{from.step, from.to}].push_back({rank, s, wait.lag});
      });
    }
  }
  return absl::OkStatus();
}

absl::Status Order::Sort(const Schedule& schedule) {
  // By node of epoch 0: the number of its gates that are not in the sequence yet, and what it
  // gates.
  std::vector<int> missing(nodes_, 0);
  std::vector<std::vector<Event>> gated(nodes_);
  std::vector<Event> steps;
  for (Rank rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    for (int s = 0; s < ranks_[rank].steps; ++s) {
      const Event& step = steps.emplace_back(Event{rank, s});
      for (const Event& gate : Gates(schedule, rank, s, 0)) {
        if (gate.step == kEnvironment) continue;
        gated[NodeOf(gate)].push_back(step);
        ++missing[NodeOf(step)];
      }
      if (missing[NodeOf(step)] == 0) sequence_.push_back({rank, s});
    }
  }
  for (size_t i = 0; i < sequence_.size(); ++i) {
    const auto [rank, s] = sequence_[i];
    for (const Event& step : gated[NodeOf({rank, s})]) {
      if (--missing[NodeOf(step)] == 0) sequence_.push_back({step.rank, step.step});
    }
  }
  const auto is_left = [&](const Event& event) { return missing[NodeOf(event)] > 0; };
  const auto left = std::find_if(steps.begin(), steps.end(), is_left);
  if (left == steps.end()) return absl::OkStatus();
  // Every step that is left has a gate that is left, so walking back along gates ends in a cycle.
  std::vector<bool> seen(nodes_, false);
  for (Event at = *left;;) {
    const std::vector<Event> gates = Gates(schedule, at.rank, at.step, 0);
    const Event gate = *std::find_if(gates.begin(), gates.end(), is_left);
    if (seen[NodeOf(at)]) {
      std::string why = "it follows";
      ForEachGatingWait(
          schedule, at.rank, at.step, ranks_[at.rank].carried[at.step], [&](const Wait& wait) {
            if (wait.lag == 0 && Source(wait.slot, 0) == gate)
              why = absl::StrFormat("it waits for slot %d:%d of", wait.slot.rank, wait.slot.index);
          });
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s never starts: %s %s, which cannot start before it either (a cycle)",
          StepName(schedule, at.rank, at.step), why, StepName(schedule, gate.rank, gate.step)));
    }
    seen[NodeOf(at)] = true;
    at = gate;
  }
}

int Order::ChainOf(const Event& event) const {
  const RankOrder& rank = ranks_[event.rank];
  return rank.first_chain + (event.step == kEnvironment ? 0 : rank.lane[event.step]);
}

int Order::StartOf(const Event& event) const {
  const RankOrder& rank = ranks_[event.rank];
  const bool environment = event.step == kEnvironment;
  const int lane = environment ? 0 : rank.lane[event.step];
  const int first = lane == 0 && !environment ? 1 : 0;
  const int epoch_length = rank.lane_length[lane] + (lane == 0 ? 1 : 0);
  const int before = environment ? 0 : first + rank.position[event.step];
  return 2 * (event.epoch * epoch_length + before);
}

int64_t Order::NodeOf(const Event& event) const {
  const RankOrder& rank = ranks_[event.rank];
  return rank.first_node + event.epoch * (rank.steps + 1) + event.step + 1;
}

const int32_t* Order::ClockOf(const Event& event) const {
  return clocks_.data() + NodeOf(event) * chains_;
}

int32_t* Order::ClockOf(const Event& event) { return clocks_.data() + NodeOf(event) * chains_; }

std::vector<Event> Order::Gates(const Schedule& schedule, Rank rank, int step, int epoch) const {
  const RankOrder& at = ranks_[rank];
  std::vector<Event> gates = {{rank, at.predecessor[step], -1, epoch}};  // -1 is the environment
  ForEachGatingWait(schedule, rank, step, at.carried[step], [&](const Wait& wait) {
    if (wait.lag <= epoch) gates.push_back(Source(wait.slot, epoch - wait.lag));
  });
  return gates;
}

void Order::Clock(const Schedule& schedule) {
  clocks_.assign(nodes_ * chains_, 0);
  // An arrival starts with its step and so has its clock, but is on no chain (see Before): an event
  // after an arrival is only known to be after the start of its step.
  auto join = [&](int32_t* clock, const Event& gate) {
    const int32_t* before = ClockOf(gate);
    for (int c = 0; c < chains_; ++c) clock[c] = std::max(clock[c], before[c]);
    int32_t& own = clock[ChainOf(gate)];
    own = std::max(own, StartOf(gate) + (gate.to < 0 ? 2 : 1));
  };
  for (int epoch = 0; epoch < 2; ++epoch) {
    if (epoch == 1) {
      for (Rank rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
        int32_t* clock = ClockOf({rank, kEnvironment, -1, 1});
        join(clock, {rank, kEnvironment, -1, 0});
        for (int s = 0; s < ranks_[rank].steps; ++s) {
          const bool last =
              ranks_[rank].position[s] + 1 == ranks_[rank].lane_length[ranks_[rank].lane[s]];
          if (last) join(clock, {rank, s, -1, 0});
        }
      }
    }
    for (const auto& [rank, step] : sequence_) {
      int32_t* clock = ClockOf({rank, step, -1, epoch});
      for (const Event& gate : Gates(schedule, rank, step, epoch)) join(clock, gate);
    }
  }
}

Event Order::Source(const Slot& slot, int epoch) const {
  Event event = producers_.at(slot);
  event.epoch = epoch;
  return event;
}

bool Order::Before(const Event& x, const Event& y) const {
  if (x.to < 0) return ClockOf(y)[ChainOf(x)] > StartOf(x) + 1;
  // No chain holds arrivals, because those of a lane are not ordered among themselves. The events
  // after an arrival are the steps that wait for it, and events after the start of such a step.
  const auto& arrivals = ranks_[x.rank].arrivals;
  const auto at = arrivals.find({x.step, x.to});
  if (at == arrivals.end()) return false;
  for (const Waiter& waiter : at->second) {
    const Event step = {waiter.rank, waiter.step, -1, x.epoch + waiter.lag};
    if (step.epoch > 1) continue;
    const bool is_y = step.rank == y.rank && step.step == y.step && step.epoch == y.epoch;
    if (is_y || ClockOf(y)[ChainOf(step)] > StartOf(step)) return true;
  }
  return false;
}

}  // namespace agmm
