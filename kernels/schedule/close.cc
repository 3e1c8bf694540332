// Every schedule has one smallest set of waits with the same order of accesses: the transitive
// reduction of its graph. Each wait in it is needed for some order, so Verify finds a fault if any
// is dropped.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "kernels/schedule/order.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/reach.h"
#include "kernels/schedule/slot_table.h"

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
      : order_(order), reach_(order), sends_(order.nodes(), -1), is_entry_(order.nodes()) {
    for (const auto& [rank, step] : order.sequence()) {
      const Order::Node node = order.NodeOf({rank, step});
      const Gates gates = order.GatesOf(node.index);
      if (IsOneSend(schedule.ranks[rank][step], rank))
        sends_[node.index] = order.ArrivalOf({rank, step, 0});
      is_entry_[node.index] = IsJoin(schedule.ranks[rank][step]) && gates.size() == 1 &&
                              (order.IsEnvironment(gates[0].index) || is_entry_[gates[0].index]);
    }
  }
  int blocks() const { return reach_.blocks(); }
  // From here on, Crosses examines the crossings of `block`.
  void Compute(int block) { reach_.Compute(block); }
  // To be called before IsEarlier examines other gates than before.
  void Begin() { asked_.reset(); }
  // Both return true if gate `i` comes before another one: by a path through a crossing of the
  // block, or by one without a crossing between the epochs. `node`: the gated one, or -1.
  bool Crosses(int node, Gates gates, int i) const {
    if (is_entry_[gates[i].index]) return BeginsEarlier(gates, i);
    return AnyPoint(node, gates[i], [&](const Reach::Point& x) {
      return x.node.epoch == 0 && std::any_of(gates.begin(), gates.end(), [&](const auto& gate) {
               return gate.lag == 0 && reach_.Crosses(x, NodeOf(gate));
             });
    });
  }
  bool IsEarlier(int node, Gates gates, int i) {
    if (is_entry_[gates[i].index]) return EntersEarlier(gates, i);
    return AnyPoint(node, gates[i], [&](const Reach::Point& x) {
      // All arrivals that one join waits for have the same point.
      if (!asked_ || asked_->first != x) asked_.emplace(x, IsBeforeAny(x, gates));
      return asked_->second;
    });
  }

 private:
  static Order::Node NodeOf(const Order::Gate& gate) { return {gate.index, 1 - gate.lag}; }
  Order::Node EnvironmentOf(const Order::Gate& gate) const {
    return {order_.NodeOf({order_.RankOf(gate.index), kEnvironment}).index, 1 - gate.lag};
  }
  // Calls `use` with points that come after the gate, until it returns true for one: if the point
  // comes before another gate, so does this one. An arrival comes before the steps that wait for
  // it, so it has happened once one starts.
  template <typename Use>
  bool AnyPoint(int node, const Order::Gate& gate, const Use& use) const {
    if (gate.arrival < 0 && use(Reach::Point{NodeOf(gate), /*end=*/true})) return true;
    const int arrival = gate.arrival < 0 ? sends_[gate.index] : gate.arrival;
    if (arrival < 0) return false;
    const auto waiters = order_.WaitersOf(arrival);
    return std::any_of(waiters.begin(), waiters.end(), [&](const Order::Waiter& waiter) {
      const Order::Node step = {waiter.index, 1 - gate.lag + waiter.lag};
      return step.epoch <= 1 && step.index != node && use(Reach::Point{step});
    });
  }
  bool IsBeforeAny(const Reach::Point& x, Gates gates) {
    others_.clear();
    for (const Order::Gate& gate : gates) {
      const Order::Node other = NodeOf(gate);
      if (!(other == x.node)) {
        others_.push_back(other);
      } else if (!x.end) {
        return true;
      }
    }
    return reach_.Before(x, others_);
  }
  // Returns true if both are joins that begin the epoch of the same rank.
  bool BeginTheSame(const Order::Gate& x, const Order::Gate& y) const {
    return x.lag == y.lag && y.arrival < 0 && is_entry_[y.index] &&
           EnvironmentOf(x) == EnvironmentOf(y);
  }
  // The next two are about a join that begins a rank's epoch. It is not needed if another gate
  // comes after that beginning. Of two such joins, the first one stays.
  bool BeginsEarlier(Gates gates, int i) const {
    const Order::Node environment = EnvironmentOf(gates[i]);
    for (int j = 0; j < static_cast<int>(gates.size()); ++j) {
      if (j == i || (j > i && BeginTheSame(gates[i], gates[j]))) continue;
      const Order::Node other = NodeOf(gates[j]);
      if (other.epoch < environment.epoch) continue;
      if (other.epoch > environment.epoch
              ? reach_.Crosses({environment, /*end=*/true}, other)
              : reach_.HasBegun(order_.RankOf(environment.index), other))
        return true;
    }
    return false;
  }
  bool EntersEarlier(Gates gates, int i) {
    const Order::Gate& gate = gates[i];
    others_.clear();
    for (int j = 0; j < static_cast<int>(gates.size()); ++j) {
      const Order::Node other = NodeOf(gates[j]);
      if (j > i && BeginTheSame(gate, gates[j])) {
        if (order_.ChainOf(other.index) == order_.ChainOf(gate.index) &&
            order_.StartOf(other) > order_.StartOf(NodeOf(gate)))
          return true;
      } else if (j != i && other.epoch > 1 - gate.lag) {
        others_.push_back(other);
      }
    }
    return reach_.Before({EnvironmentOf(gate), /*end=*/true}, others_);
  }

  const Order& order_;
  Reach reach_;
  std::vector<int> sends_;      // by node: the arrival of a step that is one send; else -1
  std::vector<bool> is_entry_;  // joins that begin their rank's epoch
  std::optional<std::pair<Reach::Point, bool>> asked_;  // the last question of IsEarlier
  std::vector<Order::Node> others_;
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
    has_equal_.resize(gates_.size());
    ForEachList([&](int, const List& list, int) { FindEqual(list); });
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

  // Calls use(node, list, first) for each list of several gates, to be compared from `first` on.
  // The order is that of Reach's rows, so that gates examined one after the other are near each
  // other.
  template <typename Use>
  void ForEachList(const Use& use) {
    for (const auto& [rank, step] : order_.sequence()) {
      const int index = order_.NodeOf({rank, step}).index;
      const List list = ListOf(index);
      if (list.end - list.begin > 1) use(index, list, 1);
    }
    for (const List& end : ends_) use(-1, end, 0);
  }

  // Finds the gates that equal another one of the list. The end of a rank's epoch may have as many
  // gates as there are ranks, too many to compare them in pairs.
  void FindEqual(const List& list) {
    by_value_.resize(list.end - list.begin);
    std::iota(by_value_.begin(), by_value_.end(), list.begin);
    const auto value = [&](int gate) {
      const Order::Gate& one = gates_[gate];
      return std::tuple(one.index, one.arrival, one.lag);
    };
    std::sort(by_value_.begin(), by_value_.end(),
              [&](int x, int y) { return value(x) < value(y); });
    for (size_t i = 1; i < by_value_.size(); ++i) {
      if (value(by_value_[i - 1]) == value(by_value_[i]))
        has_equal_[by_value_[i - 1]] = has_equal_[by_value_[i]] = true;
    }
  }

  void FindEarlier() {
    EarlierGates earlier(schedule_, order_);
    const auto find = [&](int index, const List& list, int first, auto is_earlier) {
      for (int i = first; i < list.end - list.begin; ++i)
        if (!earlier_[list.begin + i] && is_earlier(index, GatesIn(list), i))
          earlier_[list.begin + i] = true;
    };
    for (int block = 0; block < earlier.blocks(); ++block) {
      earlier.Compute(block);
      ForEachList([&](int index, const List& list, int first) {
        find(index, list, first, [&](int node, EarlierGates::Gates gates, int i) {
          return earlier.Crosses(node, gates, i);
        });
      });
    }
    ForEachList([&](int index, const List& list, int first) {
      earlier.Begin();
      find(index, list, first, [&](int node, EarlierGates::Gates gates, int i) {
        return earlier.IsEarlier(node, gates, i);
      });
    });
  }

  // Returns true if a gate comes before another one in the list, or equals one that is not removed.
  bool IsImplied(int gate, const List& list) const {
    if (earlier_[gate] || !has_equal_[gate]) return earlier_[gate];
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
  std::vector<bool> earlier_, has_equal_, removed_;  // by gate
  std::vector<int> by_value_;                        // scratch of FindEqual
  std::vector<List> ends_;                           // of ranks with idle joins
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
  SlotTable<uint8_t> awaited(schedule);
  for (const auto& steps : schedule.ranks) {
    for (const Step& step : steps) {
      for (const Wait& wait : step.waits) awaited[wait.slot] = 1;
    }
  }
  bool silenced = false;
  for (Rank rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    for (Step& step : schedule.ranks[rank]) {
      const bool spoke = !step.signals.empty();
      for (int i = static_cast<int>(step.signals.size()) - 1; i >= 0; --i) {
        if (IsArrival(step, rank, i)) break;
        if (awaited.Get(step.signals[i]) == 0) step.signals.erase(step.signals.begin() + i);
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
  SlotTable<int> renamed(schedule);
  std::vector<int> next(schedule.ranks.size(), 0);
  for (auto& steps : schedule.ranks) {
    for (Step& step : steps) {
      for (Slot& slot : step.signals) {
        const int name = next[slot.rank]++;
        renamed[slot] = name;
        slot.index = name;
      }
    }
  }
  for (auto& steps : schedule.ranks) {
    for (Step& step : steps) {
      for (Wait& wait : step.waits) wait.slot.index = renamed.Get(wait.slot);
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
