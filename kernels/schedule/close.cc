// Every schedule has one smallest set of waits with the same order of accesses: the transitive
// reduction of its graph. Each wait in it is needed for some order, so Verify finds a fault if any
// is dropped.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "kernels/schedule/clocks.h"
#include "kernels/schedule/order.h"
#include "kernels/schedule/plan.h"

namespace agmm {
namespace {

bool IsJoin(const Step& step) { return std::holds_alternative<Join>(step.op); }

int CarrierOf(const Step& step) {
  const auto* transfer = std::get_if<Transfer>(&step.op);
  return transfer != nullptr ? transfer->carrier : -1;
}

// Returns true for a join that signals nothing. At the end of its lane it gates the end of the
// epoch, but no step.
bool IsIdleJoin(const Step& step) { return IsJoin(step) && step.signals.empty(); }

// Returns the steps that gate the end of a rank's epoch: the last one of each lane except relay
// lanes, in their order.
std::vector<int> LaneEnds(const std::vector<Step>& steps, Rank rank) {
  std::vector<int> ends;
  std::vector<bool> passed = RelayLanes(steps, rank);
  for (int s = static_cast<int>(steps.size()) - 1; s >= 0; --s) {
    if (passed[steps[s].lane]) continue;
    passed[steps[s].lane] = true;
    ends.insert(ends.begin(), s);
  }
  return ends;
}

// Returns true if a step is a single copy to another rank. Once that copy has arrived, the step no
// longer touches memory.
bool IsOneSend(const Step& step, Rank rank) {
  const auto* transfer = std::get_if<Transfer>(&step.op);
  return transfer != nullptr && transfer->to.size() == 1 && transfer->to[0].rank != rank;
}

// Finds the gates of a node that come before another gate of that node. The node is in epoch 1,
// because only there a gate of lag 1 has a source.
class EarlierGates {
 public:
  using Gates = absl::Span<const Order::Gate>;

  EarlierGates(const Schedule& schedule, const Order& order)
      : order_(order), clocks_(order), sends_(order.nodes(), -1), is_entry_(order.nodes()) {
    for (const auto& [rank, step] : order.sequence()) {
      const Order::Node node = order.NodeOf({rank, step});
      const Gates gates = order.GatesOf(node.index);
      if (IsOneSend(schedule.ranks[rank][step], rank))
        sends_[node.index] = order.ArrivalOf({rank, step, 0});
      is_entry_[node.index] = IsJoin(schedule.ranks[rank][step]) && gates.size() == 1 &&
                              (order.IsEnvironment(gates[0].index) || is_entry_[gates[0].index]);
    }
  }
  int blocks() const { return clocks_.blocks(); }
  // From here on, Find examines the chains of `block`.
  void Compute(int block) { clocks_.Compute(block_ = block); }
  // Calls `found` with the position of each, from `first` on.
  template <typename Found>
  void Find(Gates gates, int first, Found found) const {
    if (std::none_of(gates.begin() + first, gates.end(),
                     [&](const auto& gate) { return Concerns(gate); }))
      return;
    // The positions of the chains before the gates, and at the gates themselves.
    int32_t before[Clocks::kChains] = {}, at[Clocks::kChains] = {};
    for (const Order::Gate& gate : gates) {
      const int32_t* clock = clocks_.Before(NodeOf(gate));
      for (int c = 0; c < Clocks::kChains; ++c) before[c] = std::max(before[c], clock[c]);
      const int chain = order_.ChainOf(gate.index);
      if (Clocks::BlockOf(chain) != block_) continue;
      int32_t& own = at[chain % Clocks::kChains];
      own = std::max(own, order_.StartOf(NodeOf(gate)) + (gate.arrival < 0 ? 2 : 1));
    }
    for (int i = first; i < static_cast<int>(gates.size()); ++i)
      if (IsEarlier(gates[i], before, at) || BeginsEarlier(gates, i)) found(i);
  }

 private:
  static Order::Node NodeOf(const Order::Gate& gate) { return {gate.index, 1 - gate.lag}; }
  int EnvironmentOf(const Order::Gate& gate) const {
    return order_.NodeOf({order_.RankOf(gate.index), kEnvironment}).index;
  }
  bool InBlock(int index) const { return Clocks::BlockOf(order_.ChainOf(index)) == block_; }

  bool IsEarlier(const Order::Gate& gate, const int32_t* before, const int32_t* at) const {
    const Order::Node node = NodeOf(gate);
    if (gate.arrival >= 0) return HasArrived(gate.arrival, node.epoch, before, at);
    if (InBlock(gate.index)) {
      const int c = order_.ChainOf(gate.index) % Clocks::kChains;
      const int start = order_.StartOf(node);
      if (before[c] > start + 1 || at[c] > start + 2) return true;  // its own end is at start + 2
    }
    const int arrival = sends_[gate.index];
    return arrival >= 0 && HasArrived(arrival, node.epoch, before, at);
  }
  // An arrival comes before the steps that wait for it, so it has happened once one starts.
  bool HasArrived(int arrival, int epoch, const int32_t* before, const int32_t* at) const {
    const auto waiters = order_.WaitersOf(arrival);
    return std::any_of(waiters.begin(), waiters.end(), [&](const Order::Waiter& waiter) {
      const Order::Node step = {waiter.index, epoch + waiter.lag};
      if (step.epoch > 1 || !InBlock(step.index)) return false;
      const int c = order_.ChainOf(step.index) % Clocks::kChains;
      return std::max(before[c], at[c]) > order_.StartOf(step);
    });
  }
  // Returns true if the gate is a join that begins a rank's epoch, and another gate comes after
  // that beginning. Of two such joins, the first one stays.
  bool BeginsEarlier(Gates gates, int i) const {
    const Order::Gate& gate = gates[i];
    if (gate.arrival >= 0 || !is_entry_[gate.index]) return false;
    const int environment = EnvironmentOf(gate);
    if (!InBlock(environment)) return false;
    const int end = order_.StartOf({environment, 1 - gate.lag}) + 1;
    for (int j = 0; j < static_cast<int>(gates.size()); ++j) {
      const bool same = gates[j].lag == gate.lag && gates[j].arrival < 0 &&
                        is_entry_[gates[j].index] && EnvironmentOf(gates[j]) == environment;
      if (j != i && !(same && j > i) &&
          clocks_.Before(NodeOf(gates[j]), order_.ChainOf(environment)) > end)
        return true;
    }
    return false;
  }
  // Returns true if the block has information about the gate.
  bool Concerns(const Order::Gate& gate) const {
    if (gate.arrival >= 0) return IsAwaitedInBlock(gate.arrival);
    if (InBlock(gate.index) || is_entry_[gate.index]) return true;
    const int arrival = sends_[gate.index];
    return arrival >= 0 && IsAwaitedInBlock(arrival);
  }
  bool IsAwaitedInBlock(int arrival) const {
    const auto waiters = order_.WaitersOf(arrival);
    return std::any_of(waiters.begin(), waiters.end(),
                       [&](const Order::Waiter& waiter) { return InBlock(waiter.index); });
  }

  const Order& order_;
  Clocks clocks_;
  std::vector<int> sends_;      // by node: the arrival of a step that is one send; else -1
  std::vector<bool> is_entry_;  // joins that begin their rank's epoch
  int block_ = 0;
};

// Finds waits that others imply: a wait that comes before another gate of every step that it gates,
// and all but one of equal waits. Removing them does not change the order of the steps.
class Reduction {
 public:
  Reduction(const Schedule& schedule, const Order& order)
      : schedule_(schedule), order_(order), gates_(order.AllGates()) {
    for (Rank rank = 0; rank < Ranks(); ++rank) AddEnd(rank);
    earlier_.resize(gates_.size());
    removed_.resize(gates_.size());
    FindEarlier();
    for (Rank rank = 0; rank < Ranks(); ++rank) RemoveImplied(rank);
    RemoveImpliedAtEnds();
  }

  bool IsRemoved(Rank rank, int step, int wait) const {
    return removed_[FirstWait(rank, step) + wait];
  }

 private:
  // Gates that are compared with each other: those of a node, or of the end of a rank's epoch.
  struct List {
    int begin = 0, end = 0;
  };
  // A wait of an idle join, which also gates the end of its rank's epoch.
  struct WaitAtEnd {
    int wait = 0, at_end = 0;  // the gates
    List end;
  };

  Rank Ranks() const { return static_cast<Rank>(schedule_.ranks.size()); }
  List ListOf(int index) const { return {order_.FirstGate(index), order_.FirstGate(index + 1)}; }
  absl::Span<const Order::Gate> GatesIn(const List& list) const {
    return absl::MakeConstSpan(gates_).subspan(list.begin, list.end - list.begin);
  }
  // The first gate of a step is the step before it, not a wait.
  int FirstWait(Rank rank, int step) const {
    return order_.FirstGate(order_.NodeOf({rank, step}).index) + 1;
  }

  // Adds the gates of the end of the rank's epoch if a lane ends with an idle join. The gates of an
  // idle join replace the join, because removing waits does not change their order.
  void AddEnd(Rank rank) {
    const int begin = static_cast<int>(gates_.size());
    std::vector<WaitAtEnd> waits;
    for (int s : LaneEnds(schedule_.ranks[rank], rank)) {
      const int index = order_.NodeOf({rank, s}).index;
      if (!IsIdleJoin(schedule_.ranks[rank][s])) {
        gates_.push_back({index});
        continue;
      }
      const List join = ListOf(index);
      const int first = static_cast<int>(gates_.size());
      for (int gate = join.begin; gate < join.end; ++gate)
        gates_.push_back(Order::Gate(gates_[gate]));
      for (int gate = join.end - 1; gate > join.begin; --gate)
        waits.push_back({gate, first + gate - join.begin});
    }
    const List end = {begin, static_cast<int>(gates_.size())};
    for (WaitAtEnd& wait : waits) wait.end = end;
    waits_at_end_.insert(waits_at_end_.end(), waits.begin(), waits.end());
    if (waits.empty()) {
      gates_.resize(begin);
    } else {
      ends_.push_back(end);
    }
  }

  void FindEarlier() {
    EarlierGates earlier(schedule_, order_);
    const auto find = [&](const List& list, int first) {
      earlier.Find(GatesIn(list), first, [&](int i) { earlier_[list.begin + i] = true; });
    };
    for (int block = 0; block < earlier.blocks(); ++block) {
      earlier.Compute(block);
      for (int index = 0; index < order_.nodes(); ++index)
        if (!order_.IsEnvironment(index)) find(ListOf(index), 1);
      for (const List& end : ends_) find(end, 0);
    }
  }

  // Returns true if a gate comes before another one in the list, or equals one that is not removed.
  bool IsImplied(int gate, const List& list) const {
    if (earlier_[gate]) return true;
    for (int i = list.begin; i < list.end; ++i)
      if (i != gate && gates_[i] == gates_[gate] && !removed_[i]) return true;
    return false;
  }

  void RemoveImplied(Rank rank) {
    const std::vector<Step>& steps = schedule_.ranks[rank];
    // By step: the gates of its next carried transfer.
    std::vector<int> next(steps.size());
    for (int s = 0; s < static_cast<int>(steps.size()); ++s)
      next[s] = FirstWait(rank, s) + static_cast<int>(steps[s].waits.size());
    // The waits of a carried transfer also gate its multiply.
    std::vector<int> carried(steps.size());
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const int carrier = CarrierOf(steps[s]);
      if (carrier < 0) continue;
      carried[s] = next[carrier];
      next[carrier] += static_cast<int>(steps[s].waits.size());
    }
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const int carrier = CarrierOf(steps[s]);
      const List mine = ListOf(order_.NodeOf({rank, s}).index);
      for (int i = static_cast<int>(steps[s].waits.size()) - 1; i >= 0; --i) {
        const int wait = mine.begin + 1 + i, there = carried[s] + i;
        if (!IsImplied(wait, mine)) continue;
        if (carrier >= 0 && !IsImplied(there, ListOf(order_.NodeOf({rank, carrier}).index)))
          continue;
        removed_[wait] = true;
        if (carrier >= 0) removed_[there] = true;
      }
    }
  }

  void RemoveImpliedAtEnds() {
    for (const WaitAtEnd& one : waits_at_end_) removed_[one.at_end] = removed_[one.wait];
    for (const WaitAtEnd& one : waits_at_end_) {
      if (!removed_[one.at_end] && IsImplied(one.at_end, one.end))
        removed_[one.at_end] = removed_[one.wait] = true;
    }
  }

  const Schedule& schedule_;
  const Order& order_;
  std::vector<Order::Gate> gates_;  // as Order numbers them, and then those of the ends
  std::vector<bool> earlier_, removed_;
  std::vector<List> ends_;  // of ranks with idle joins
  std::vector<WaitAtEnd> waits_at_end_;
};

// Returns true if a join lost its last wait. It may then begin its rank's epoch, and other gates
// may imply it.
bool RemoveImpliedWaits(Schedule& schedule, const Order& order) {
  const Reduction reduction(schedule, order);
  bool freed = false;
  for (Rank rank = 0; rank < static_cast<Rank>(schedule.ranks.size()); ++rank) {
    std::vector<Step>& steps = schedule.ranks[rank];
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      int i = 0;
      const size_t erased = std::erase_if(
          steps[s].waits, [&](const Wait&) { return reduction.IsRemoved(rank, s, i++); });
      freed |= erased > 0 && IsJoin(steps[s]) && steps[s].waits.empty() && !IsIdleJoin(steps[s]);
    }
  }
  return freed;
}

// Removes signals that no step waits for, unless that would move an arrival's signal from its
// position. Returns true if a join with waits lost its last signal.
bool RemoveIdleSignals(Schedule& schedule) {
  absl::flat_hash_set<std::pair<Rank, int>> awaited;
  for (const auto& steps : schedule.ranks) {
    for (const Step& step : steps) {
      for (const Wait& wait : step.waits) awaited.emplace(wait.slot.rank, wait.slot.index);
    }
  }
  bool silenced = false;
  for (Rank rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    for (Step& step : schedule.ranks[rank]) {
      const bool spoke = !step.signals.empty();
      for (int i = static_cast<int>(step.signals.size()) - 1; i >= 0; --i) {
        if (IsArrival(step, rank, i)) break;
        if (!awaited.contains({step.signals[i].rank, step.signals[i].index}))
          step.signals.erase(step.signals.begin() + i);
      }
      silenced |= spoke && IsIdleJoin(step) && !step.waits.empty();
    }
  }
  return silenced;
}

// Moves the waits of joins that signal nothing to the next step of the lane, and drops joins
// without waits. Returns true if a wait has moved.
bool RemoveIdleJoins(Schedule& schedule) {
  bool moved = false;
  for (std::vector<Step>& steps : schedule.ranks) {
    if (std::none_of(steps.begin(), steps.end(), IsIdleJoin)) continue;
    std::vector<int> renamed(steps.size(), -1);
    std::vector<Step> kept;
    for (size_t s = 0; s < steps.size(); ++s) {
      Step& step = steps[s];
      if (IsIdleJoin(step)) {
        size_t next = s + 1;
        while (next < steps.size() && steps[next].lane != step.lane) ++next;
        // Does not move them to a carried transfer, whose waits would also gate its multiply.
        if (next < steps.size() && CarrierOf(steps[next]) < 0) {
          moved |= !step.waits.empty();
          steps[next].waits.insert(steps[next].waits.end(), step.waits.begin(), step.waits.end());
          step.waits.clear();
        }
        if (step.waits.empty()) continue;
      }
      renamed[s] = static_cast<int>(kept.size());
      kept.push_back(std::move(step));
    }
    for (Step& step : kept) {
      if (CarrierOf(step) >= 0) {
        Transfer& transfer = std::get<Transfer>(step.op);
        transfer.carrier = renamed[transfer.carrier];
      }
    }
    steps = std::move(kept);
  }
  return moved;
}

// Numbers the slots of each rank from 0 in the order of their producers.
void Renumber(Schedule& schedule) {
  size_t signals = 0;
  for (const auto& steps : schedule.ranks)
    for (const Step& step : steps) signals += step.signals.size();
  absl::flat_hash_map<std::pair<Rank, int>, int> renamed;
  renamed.reserve(signals);
  std::vector<int> next(schedule.ranks.size(), 0);
  for (auto& steps : schedule.ranks) {
    for (Step& step : steps) {
      for (Slot& slot : step.signals) {
        const int name = next[slot.rank]++;
        renamed[{slot.rank, slot.index}] = name;
        slot.index = name;
      }
    }
  }
  for (auto& steps : schedule.ranks) {
    for (Step& step : steps) {
      for (Wait& wait : step.waits) wait.slot.index = renamed.at({wait.slot.rank, wait.slot.index});
    }
  }
}

}  // namespace

Schedule Close(Schedule closed) {
  // Once is enough for the schedules of Build: joins that it makes either begin their rank's epoch
  // or end it, or wait for a step that is not a join.
  for (bool changed = true; changed;) {
    const absl::StatusOr<Order> order = Order::Build(closed);
    if (!order.ok()) return closed;  // the schedule cannot run, and Verify refuses it
    changed = RemoveImpliedWaits(closed, *order);
    changed |= RemoveIdleSignals(closed);
    changed |= RemoveIdleJoins(closed);
  }
  Renumber(closed);
  return closed;
}

}  // namespace agmm
