#include "kernels/schedule/order.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {

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
  AGMM_RETURN_IF_ERROR(order.IndexSteps(schedule));
  AGMM_RETURN_IF_ERROR(order.IndexWaits(schedule));
  AGMM_RETURN_IF_ERROR(order.Sort(schedule));
  return order;
}

absl::Status Order::IndexSteps(const Schedule& schedule) {
  const int rank_count = static_cast<int>(schedule.ranks.size());
  int arrivals = 0;
  producers_ = SlotTable<Producer>(schedule);
  for (Rank rank = 0; rank < rank_count; ++rank) {
    const std::vector<Step>& steps = schedule.ranks[rank];
    const int first_chain = chains();
    first_node_.push_back(nodes());
    chain_length_.push_back(1);  // the environment
    const auto add = [&](int chain, int position) {
      rank_.push_back(rank);
      chain_.push_back(chain);
      position_.push_back(position);
      arrival_begin_.push_back(arrivals);
    };
    add(first_chain, 0);
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const Step& step = steps[s];
      const auto* transfer = std::get_if<Transfer>(&step.op);
      const int carrier = transfer != nullptr ? transfer->carrier : -1;
      if (step.lane < 0 || carrier < -1 || carrier >= static_cast<int>(steps.size()) ||
          (carrier >= 0 && !std::holds_alternative<Multiply>(steps[carrier].op))) {
        return absl::InvalidArgumentError(
            absl::StrFormat("rank %d step %d has lane %d and carrier %d; lanes start at 0, and a "
                            "carrier is a multiply among the rank's %d steps",
                            rank, s, step.lane, carrier, steps.size()));
      }
      if (carrier >= 0) carried_.emplace_back(first_node_[rank] + carrier + 1, s);
      const int chain = first_chain + step.lane;
      if (chain >= chains()) chain_length_.resize(chain + 1, 0);
      add(chain, chain_length_[chain]++);
      if (transfer != nullptr)
        arrivals += static_cast<int>(std::min(transfer->to.size(), step.signals.size()));
      for (int i = 0; i < static_cast<int>(step.signals.size()); ++i) {
        const Slot& slot = step.signals[i];
        if (slot.rank < 0 || slot.rank >= rank_count) {
          return absl::InvalidArgumentError(
              absl::StrFormat("%s signals slot %d:%d; ranks are 0 to %d",
                              StepName(schedule, rank, s), slot.rank, slot.index, rank_count - 1));
        }
        Producer& producer = producers_[slot];
        if (producer.rank >= 0) {
          return absl::InvalidArgumentError(absl::StrFormat(
              "%s signals slot %d:%d, which %s signals already; a slot has one producer",
              StepName(schedule, rank, s), slot.rank, slot.index,
              StepName(schedule, producer.rank, producer.step)));
        }
        producer = {rank, s, IsArrival(step, rank, i) ? i : -1};
      }
    }
    const std::vector<bool> relays = RelayLanes(steps, rank);
    is_relay_.insert(is_relay_.end(), relays.begin(), relays.end());
    is_relay_.resize(chains(), false);  // a rank without steps has an environment
  }
  first_node_.push_back(nodes());
  arrival_begin_.push_back(arrivals);
  std::sort(carried_.begin(), carried_.end());
  IndexBundles(schedule);
  return absl::OkStatus();
}

absl::Status Order::AddGate(const Schedule& schedule, Rank rank, int step, const Wait& wait) {
  const Producer producer = producers_.Get(wait.slot);
  if (producer.rank < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s waits for slot %d:%d, which no step signals",
                        StepName(schedule, rank, step), wait.slot.rank, wait.slot.index));
  }
  const Event event = {producer.rank, producer.step, producer.to};
  gates_.push_back({NodeOf(event).index, event.to < 0 ? -1 : ArrivalOf(event), wait.lag});
  return absl::OkStatus();
}

absl::Status Order::IndexWaits(const Schedule& schedule) {
  auto carried = carried_.begin();
  std::vector<int> last;  // node of each lane
  // The gates of a rank's environment stand in front of those of its steps.
  for (Rank rank = 0; rank + 1 < static_cast<int>(first_node_.size()); ++rank) {
    const int environment = first_node_[rank];
    const std::vector<Step>& steps = schedule.ranks[rank];
    gate_begin_.push_back(static_cast<int>(gates_.size()));
    gates_.push_back({environment, -1, 1});
    last.assign(LaneCount(steps), -1);
    for (int s = 0; s < static_cast<int>(steps.size()); ++s)
      last[steps[s].lane] = environment + s + 1;
    // Relay lanes follow their own last step; the others follow the environment.
    std::vector<Gate> before(last.size(), {environment, -1, 0});
    for (size_t lane = 0; lane < last.size(); ++lane) {
      if (last[lane] < 0) continue;
      const Gate end = {last[lane], -1, 1};
      if (IsRelay(last[lane])) {
        before[lane] = end;
      } else {
        gates_.push_back(end);
      }
    }
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      gate_begin_.push_back(static_cast<int>(gates_.size()));
      const int index = environment + s + 1;
      gates_.push_back(std::exchange(before[steps[s].lane], {index, -1, 0}));
      for (const Wait& wait : steps[s].waits)
        AGMM_RETURN_IF_ERROR(AddGate(schedule, rank, s, wait));
      for (; carried != carried_.end() && carried->first == index; ++carried)
        for (const Wait& wait : steps[carried->second].waits)
          AGMM_RETURN_IF_ERROR(AddGate(schedule, rank, carried->second, wait));
    }
  }
  gate_begin_.push_back(static_cast<int>(gates_.size()));
  // The waiters of each arrival.
  waiter_begin_.assign(arrival_begin_.back() + 2, 0);
  for (const Gate& gate : gates_)
    if (gate.arrival >= 0) ++waiter_begin_[gate.arrival + 2];
  for (size_t i = 2; i < waiter_begin_.size(); ++i) waiter_begin_[i] += waiter_begin_[i - 1];
  waiters_.resize(waiter_begin_.back());
  for (int index = 0; index < nodes(); ++index)
    for (const Gate& gate : GatesOf(index))
      if (gate.arrival >= 0) waiters_[waiter_begin_[gate.arrival + 1]++] = {index, gate.lag};
  waiter_begin_.pop_back();
  return absl::OkStatus();
}

void Order::IndexBundles(const Schedule& schedule) {
  bundle_.resize(nodes());
  std::iota(bundle_.begin(), bundle_.end(), 0);
  is_carried_.assign(nodes(), false);
  std::vector<int> last;  // node of each lane
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    const std::vector<Step>& steps = schedule.ranks[rank];
    last.assign(LaneCount(steps), -1);
    for (size_t s = 0; s < steps.size(); ++s) {
      const int index = first_node_[rank] + static_cast<int>(s) + 1;
      int& before = last[steps[s].lane];
      const auto* multiply = std::get_if<Multiply>(&steps[s].op);
      if (multiply != nullptr && multiply->accumulate && !multiply->acc && before >= 0)
        bundle_[index] = bundle_[before];
      before = index;
    }
  }
  for (const auto& [multiply, step] : carried_) {
    const int index = first_node_[rank_[multiply]] + step + 1;
    bundle_[index] = bundle_[multiply];
    is_carried_[index] = true;
  }
  member_begin_.assign(nodes() + 2, 0);
  for (int bundle : bundle_) ++member_begin_[bundle + 2];
  for (size_t i = 2; i < member_begin_.size(); ++i) member_begin_[i] += member_begin_[i - 1];
  members_.resize(nodes());
  for (int index = 0; index < nodes(); ++index)
    members_[member_begin_[bundle_[index] + 1]++] = index;
  member_begin_.pop_back();
}

bool Order::GatesBundle(const Gate& gate, int index) const {
  return bundle_[gate.index] != bundle_[index] || &gate != GatesOf(index).data() ||
         is_carried_[gate.index] != is_carried_[index];
}

absl::Status Order::Sort(const Schedule& schedule) {
  // By bundle: the number of its gates that are not in the sequence yet, and the bundles that it
  // gates.
  std::vector<int> missing(nodes(), 0), gated_begin(nodes() + 2, 0), gated;
  place_.assign(nodes(), -1);
  std::vector<bool> environment(nodes(), false);
  for (size_t rank = 0; rank + 1 < first_node_.size(); ++rank)
    environment[first_node_[rank]] = true;
  const auto for_each_edge = [&](auto use) {
    for (int index = 0; index < nodes(); ++index) {
      for (const Gate& gate : GatesOf(index)) {
        if (gate.lag == 0 && !environment[gate.index] && GatesBundle(gate, index))
          use(bundle_[gate.index], bundle_[index]);
      }
    }
  };
  for_each_edge([&](int from, int to) {
    ++gated_begin[from + 2];
    ++missing[to];
  });
  for (size_t i = 2; i < gated_begin.size(); ++i) gated_begin[i] += gated_begin[i - 1];
  gated.resize(gated_begin.back());
  for_each_edge([&](int from, int to) { gated[gated_begin[from + 1]++] = to; });
  const auto append = [&](int bundle) {
    for (int i = member_begin_[bundle]; i < member_begin_[bundle + 1]; ++i) {
      const int index = members_[i];
      place_[index] = static_cast<int>(sequence_.size());
      sequence_.emplace_back(rank_[index], index - first_node_[rank_[index]] - 1);
    }
  };
  const int steps = nodes() - static_cast<int>(schedule.ranks.size());
  sequence_.reserve(steps);
  for (int index = 0; index < nodes(); ++index)
    if (!environment[index] && bundle_[index] == index && missing[index] == 0) append(index);
  for (size_t i = 0; i < sequence_.size(); ++i) {
    const int index = NodeOf({sequence_[i].first, sequence_[i].second}).index;
    if (bundle_[index] != index) continue;
    for (int at = gated_begin[index]; at < gated_begin[index + 1]; ++at)
      if (--missing[gated[at]] == 0) append(gated[at]);
  }
  return static_cast<int>(sequence_.size()) == steps ? absl::OkStatus() : Cycle(schedule, missing);
}

absl::Status Order::Cycle(const Schedule& schedule, const std::vector<int>& missing) const {
  // Every remaining bundle has a remaining gate, so a walk back along gates ends in a cycle.
  const auto gate_left = [&](int bundle) -> std::pair<int, Gate> {
    for (int i = member_begin_[bundle]; i < member_begin_[bundle + 1]; ++i) {
      for (const Gate& gate : GatesOf(members_[i])) {
        if (gate.lag == 0 && missing[bundle_[gate.index]] > 0 && GatesBundle(gate, members_[i]))
          return {members_[i], gate};
      }
    }
    return {bundle, {bundle}};
  };
  std::vector<bool> seen(nodes(), false);
  int at = static_cast<int>(
      std::find_if(missing.begin(), missing.end(), [](int left) { return left > 0; }) -
      missing.begin());
  while (!seen[at]) {
    seen[at] = true;
    at = bundle_[gate_left(at).second.index];
  }
  const auto [index, gate] = gate_left(at);
  const Rank rank = rank_[index], other = rank_[gate.index];
  const int step = index - first_node_[rank] - 1, other_step = gate.index - first_node_[other] - 1;
  std::string why = "it follows";
  const auto look = [&, gated_by = gate.index](int waits_of) {
    for (const Wait& wait : schedule.ranks[rank][waits_of].waits) {
      if (wait.lag == 0 && NodeOf(Source(wait.slot, 0)).index == gated_by)
        why = absl::StrFormat("it waits for slot %d:%d of", wait.slot.rank, wait.slot.index);
    }
  };
  look(step);
  for (const auto& [carrier, transfer] : carried_)
    if (carrier == index) look(transfer);
  const std::string with = bundle_[index] == index
                               ? ""
                               : absl::StrFormat("; it runs as one with step %d",
                                                 bundle_[index] - first_node_[rank] - 1);
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s never starts: %s %s, which cannot start before it either (a cycle%s)",
      StepName(schedule, rank, step), why, StepName(schedule, other, other_step), with));
}

Event Order::Source(const Slot& slot, int epoch) const {
  const Producer producer = producers_.Get(slot);
  return {producer.rank, producer.step, producer.to, epoch};
}

int Order::LanePredecessor(Rank rank, int step) const {
  const Gate& before = GatesOf(NodeOf({rank, step}).index)[0];
  return before.lag > 0 ? -1 : before.index - first_node_[rank] - 1;  // kEnvironment is -1, too
}

}  // namespace agmm
