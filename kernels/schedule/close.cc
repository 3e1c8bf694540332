// Every schedule has one smallest set of waits with the same order of accesses: the transitive
// reduction of its graph. Each wait in it is the only one that gives some order, so Verify finds a
// fault if any is dropped.
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

// Finds gates of a node of epoch 1, where a lag of 1 has a source, that come before another one of
// them.
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
                              order.IsEnvironment(gates[0].index);
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
  // An arrival is before the steps that wait for it.
  bool HasArrived(int arrival, int epoch, const int32_t* before, const int32_t* at) const {
    const auto waiters = order_.WaitersOf(arrival);
    return std::any_of(waiters.begin(), waiters.end(), [&](const Order::Waiter& waiter) {
      const Order::Node step = {waiter.index, epoch + waiter.lag};
      if (step.epoch > 1 || !InBlock(step.index)) return false;
      const int c = order_.ChainOf(step.index) % Clocks::kChains;
      return std::max(before[c], at[c]) > order_.StartOf(step);
    });
  }
  // Returns true if the gate is the join with which a rank's epoch begins, and another gate is
  // behind that beginning. Of two such joins the first one stays.
  bool BeginsEarlier(Gates gates, int i) const {
    const Order::Gate& gate = gates[i];
    if (gate.arrival >= 0 || !is_entry_[gate.index]) return false;
    const int environment = order_.GatesOf(gate.index)[0].index;
    if (!InBlock(environment)) return false;
    const int end = order_.StartOf({environment, 1 - gate.lag}) + 1;
    for (int j = 0; j < static_cast<int>(gates.size()); ++j) {
      const bool same = gates[j].lag == gate.lag && gates[j].arrival < 0 &&
                        is_entry_[gates[j].index] &&
                        order_.GatesOf(gates[j].index)[0].index == environment;
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
  std::vector<bool> is_entry_;  // joins gated only by the environment
  int block_ = 0;
};

// Removes waits that others imply: a wait that comes before another gate of every step that it
// gates, and all but one of the same waits. The order of the steps does not change.
class Closer {
 public:
  Closer(Schedule& schedule, const Order& order)
      : schedule_(schedule), order_(order), steps_(AllGates()), ends_(schedule.ranks.size()) {
    for (Rank rank = 0; rank < Ranks(); ++rank) AddEnd(rank);
    EarlierGates gates(schedule, order);
    for (int block = 0; block < gates.blocks(); ++block) {
      gates.Compute(block);
      for (int index = 0; index < order.nodes(); ++index) {
        if (order.IsEnvironment(index)) continue;
        // The first gate is the step before it, not a wait.
        gates.Find(order.GatesOf(index), 1,
                   [&](int i) { steps_.earlier[FirstGate(index) + i] = true; });
      }
      for (Marks& end : ends_) gates.Find(end.gates, 0, [&](int i) { end.earlier[i] = true; });
    }
  }

  // Returns true if a join lost its last wait: it may then begin its rank's epoch, and be implied
  // itself.
  bool Run() {
    bool freed = false;
    for (Rank rank = 0; rank < Ranks(); ++rank) {
      RemoveImplied(rank);
      RemoveImpliedAtEnd(rank);
      std::vector<Step>& steps = schedule_.ranks[rank];
      for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
        const size_t first = FirstWait(rank, s);
        size_t i = 0;
        const size_t erased =
            std::erase_if(steps[s].waits, [&](const Wait&) { return steps_.removed[first + i++]; });
        freed |= erased > 0 && IsJoin(steps[s]) && steps[s].waits.empty();
      }
    }
    return freed;
  }

 private:
  // Gates that are examined together, and the findings.
  struct Marks {
    explicit Marks(absl::Span<const Order::Gate> all)
        : gates(all.begin(), all.end()), earlier(all.size()), removed(all.size()) {}
    Marks() = default;
    std::vector<Order::Gate> gates;
    std::vector<bool> earlier, removed;

    // Returns true if the gate at `at`, among the gates in [begin, end), comes before another one
    // or is a duplicate.
    bool Implied(size_t at, size_t begin, size_t end) const {
      if (earlier[at]) return true;
      for (size_t i = begin; i < end; ++i)
        if (i != at && gates[i] == gates[at] && !removed[i]) return true;
      return false;
    }
  };

  Rank Ranks() const { return static_cast<Rank>(schedule_.ranks.size()); }
  absl::Span<const Order::Gate> AllGates() const {
    if (order_.nodes() == 0) return {};
    const auto first = order_.GatesOf(0), last = order_.GatesOf(order_.nodes() - 1);
    return absl::MakeConstSpan(first.data(), last.data() + last.size());
  }
  // Positions in steps_.
  size_t FirstGate(int index) const { return order_.GatesOf(index).data() - AllGates().data(); }
  size_t FirstWait(Rank rank, int step) const {
    return FirstGate(order_.NodeOf({rank, step}).index) + 1;
  }
  bool Implied(size_t gate, Rank rank, int step) const {
    const int index = order_.NodeOf({rank, step}).index;
    const size_t first = FirstGate(index);
    return steps_.Implied(gate, first, first + order_.GatesOf(index).size());
  }

  // The gates of the end of the rank's epoch, which counts where a lane ends with an idle join.
  // Instead of idle joins they are the joins' gates, whose order no removed wait changes.
  void AddEnd(Rank rank) {
    std::vector<Order::Gate> gates;
    bool idle = false;
    for (int s : LaneEnds(schedule_.ranks[rank], rank)) {
      const int index = order_.NodeOf({rank, s}).index;
      if (!IsIdleJoin(schedule_.ranks[rank][s])) {
        gates.push_back({index});
        continue;
      }
      idle = true;
      gates.insert(gates.end(), order_.GatesOf(index).begin(), order_.GatesOf(index).end());
    }
    if (idle) ends_[rank] = Marks(gates);
  }

  void RemoveImplied(Rank rank) {
    const std::vector<Step>& steps = schedule_.ranks[rank];
    // By step, where the waits of its next carried transfer stand among its gates.
    std::vector<size_t> next(steps.size()), carried(steps.size());
    for (int s = 0; s < static_cast<int>(steps.size()); ++s)
      next[s] = FirstWait(rank, s) + steps[s].waits.size();
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const int carrier = CarrierOf(steps[s]);
      if (carrier < 0) continue;
      carried[s] = next[carrier];
      next[carrier] += steps[s].waits.size();
    }
    for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
      const int carrier = CarrierOf(steps[s]);
      for (size_t i = steps[s].waits.size(); i-- > 0;) {
        const size_t wait = FirstWait(rank, s) + i, there = carried[s] + i;
        if (!Implied(wait, rank, s) || (carrier >= 0 && !Implied(there, rank, carrier))) continue;
        steps_.removed[wait] = true;
        if (carrier >= 0) steps_.removed[there] = true;
      }
    }
  }

  void RemoveImpliedAtEnd(Rank rank) {
    Marks& end = ends_[rank];
    if (end.gates.empty()) return;
    size_t first = 0;
    const std::vector<int> lane_ends = LaneEnds(schedule_.ranks[rank], rank);
    const auto for_each_join = [&](auto use) {
      first = 0;
      for (int s : lane_ends) {
        const Step& step = schedule_.ranks[rank][s];
        if (IsIdleJoin(step)) use(first + 1, FirstWait(rank, s), step.waits.size());
        first += IsIdleJoin(step) ? 1 + step.waits.size() : 1;
      }
    };
    for_each_join([&](size_t at, size_t wait, size_t count) {
      for (size_t i = 0; i < count; ++i) end.removed[at + i] = steps_.removed[wait + i];
    });
    for_each_join([&](size_t at, size_t wait, size_t count) {
      for (size_t i = count; i-- > 0;) {
        if (end.removed[at + i] || !end.Implied(at + i, 0, end.gates.size())) continue;
        end.removed[at + i] = steps_.removed[wait + i] = true;
      }
    });
  }

  Schedule& schedule_;
  const Order& order_;
  Marks steps_;              // by gate of a step
  std::vector<Marks> ends_;  // by rank; empty without idle joins
};

// Removes signals that no step waits for, unless that would move an arrival's signal from its
// position. Returns true if a join lost its last signal.
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
      if (spoke && IsIdleJoin(step)) silenced = true;
    }
  }
  return silenced;
}

// Moves the waits of joins that signal nothing to the next step of the lane, and drops joins
// without waits. Returns true if the schedule changed.
bool RemoveIdleJoins(Schedule& schedule) {
  bool changed = false;
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
          steps[next].waits.insert(steps[next].waits.end(), step.waits.begin(), step.waits.end());
          step.waits.clear();
        }
        if (step.waits.empty()) {
          changed = true;
          continue;
        }
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
  return changed;
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
  while (true) {
    const absl::StatusOr<Order> order = Order::Build(closed);
    if (!order.ok()) return closed;  // the schedule cannot run, and Verify refuses it
    const bool freed = Closer(closed, *order).Run();
    const bool silenced = RemoveIdleSignals(closed);
    const bool removed = RemoveIdleJoins(closed);
    if (!freed && !silenced && !removed) break;
  }
  Renumber(closed);
  return closed;
}

}  // namespace agmm
