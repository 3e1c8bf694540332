// Every schedule has one smallest set of waits with the same order of steps: the transitive
// reduction of its graph. Each wait in it carries some order alone, so that dropping one is a fault
// that Verify finds.
#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "kernels/schedule/order.h"
#include "kernels/schedule/plan.h"

namespace agmm {
namespace {

bool IsJoin(const Step& step) {
  const auto* transfer = std::get_if<Transfer>(&step.op);
  return transfer != nullptr && transfer->to.empty();
}

int CarrierOf(const Step& step) {
  const auto* transfer = std::get_if<Transfer>(&step.op);
  return transfer != nullptr ? transfer->carrier : -1;
}

// A join that signals nothing; at the end of its lane it gates the end of the epoch, no step.
bool IsIdleJoin(const Step& step) { return IsJoin(step) && step.signals.empty(); }

// The last step of each lane, in their order.
std::vector<int> LaneEnds(const std::vector<Step>& steps) {
  std::vector<int> ends;
  std::set<int> followed;
  for (int s = static_cast<int>(steps.size()) - 1; s >= 0; --s) {
    if (followed.insert(steps[s].lane).second) ends.insert(ends.begin(), s);
  }
  return ends;
}

// Removes waits that others imply. `order_` stays true, because the order of the steps does not
// change.
class Closer {
 public:
  Closer(Schedule& schedule, const Order& order) : schedule_(schedule), order_(order) {}

  // Removes each wait whose event comes before another gate of every step that it gates.
  void RemoveImpliedWaits() {
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      for (int s = 0; s < static_cast<int>(schedule_.ranks[rank].size()); ++s) {
        const int carrier = CarrierOf(schedule_.ranks[rank][s]);
        RemoveWaits(rank, s, [&](const Wait& wait) {
          return Implied(GatesOf(rank, s), wait) &&
                 (carrier < 0 || Implied(GatesOf(rank, carrier), wait));
        });
      }
    }
  }

  // Does the same for joins at the ends of lanes, which gate the end of the epoch.
  void RemoveImpliedEndWaits() {
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      for (int s : LaneEnds(schedule_.ranks[rank])) {
        if (!IsIdleJoin(schedule_.ranks[rank][s])) continue;
        RemoveWaits(rank, s, [&](const Wait& wait) { return Implied(EndGates(rank), wait); });
      }
    }
  }

 private:
  template <typename Idle>
  void RemoveWaits(Rank rank, int step, const Idle& idle) {
    std::vector<Wait>& waits = schedule_.ranks[rank][step].waits;
    for (int i = static_cast<int>(waits.size()) - 1; i >= 0; --i) {
      if (idle(waits[i])) waits.erase(waits.begin() + i);
    }
  }

  // In epoch 1, where a lag of 1 has a source.
  std::vector<Event> GatesOf(Rank rank, int step) const {
    return order_.Gates(schedule_, rank, step, 1);
  }

  // The gates of the end of the rank's epoch. Instead of idle joins they are the joins' gates,
  // whose order no removed wait has changed.
  std::vector<Event> EndGates(Rank rank) const {
    std::vector<Event> gates;
    for (int s : LaneEnds(schedule_.ranks[rank])) {
      std::vector<Event> more = {{rank, s, -1, 1}};
      if (IsIdleJoin(schedule_.ranks[rank][s])) more = GatesOf(rank, s);
      gates.insert(gates.end(), more.begin(), more.end());
    }
    return gates;
  }

  // Whether one of `gates` besides that of `wait` itself ends no earlier than the wait.
  bool Implied(const std::vector<Event>& gates, const Wait& wait) const {
    const Event event = order_.Source(wait.slot, 1 - wait.lag);
    return std::count_if(gates.begin(), gates.end(), [&](const Event& gate) {
             return event == gate || order_.Before(event, gate);
           }) > 1;
  }

  Schedule& schedule_;
  const Order& order_;
};

// Removes signals that no step waits for, unless that would move an arrival's signal from its
// position. True if a join lost its last signal.
bool RemoveIdleSignals(Schedule& schedule) {
  std::set<Slot> awaited;
  for (const auto& steps : schedule.ranks) {
    for (const Step& step : steps) {
      for (const Wait& wait : step.waits) awaited.insert(wait.slot);
    }
  }
  bool silenced = false;
  for (Rank rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    for (Step& step : schedule.ranks[rank]) {
      const bool spoke = !step.signals.empty();
      for (int i = static_cast<int>(step.signals.size()) - 1; i >= 0; --i) {
        if (IsArrival(step, rank, i)) break;
        if (awaited.count(step.signals[i]) == 0) step.signals.erase(step.signals.begin() + i);
      }
      if (spoke && IsIdleJoin(step)) silenced = true;
    }
  }
  return silenced;
}

// Moves the waits of joins that signal nothing to the next step of the lane, and drops joins
// without waits. True if it changed the schedule.
bool RemoveIdleJoins(Schedule& schedule) {
  bool changed = false;
  for (std::vector<Step>& steps : schedule.ranks) {
    std::vector<int> renamed(steps.size(), -1);
    std::vector<Step> kept;
    for (size_t s = 0; s < steps.size(); ++s) {
      Step& step = steps[s];
      if (IsIdleJoin(step)) {
        size_t next = s + 1;
        while (next < steps.size() && steps[next].lane != step.lane) ++next;
        // Not to a carried transfer, whose waits would gate its multiply too.
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
  std::map<Slot, Slot> renamed;
  std::vector<int> next(schedule.ranks.size(), 0);
  for (auto& steps : schedule.ranks) {
    for (Step& step : steps) {
      for (Slot& slot : step.signals) {
        const Slot name = {slot.rank, next[slot.rank]++};
        renamed[slot] = name;
        slot = name;
      }
    }
  }
  for (auto& steps : schedule.ranks) {
    for (Step& step : steps) {
      for (Wait& wait : step.waits) wait.slot = renamed.at(wait.slot);
    }
  }
}

}  // namespace

Schedule Close(const Schedule& schedule) {
  Schedule closed = schedule;
  while (true) {
    const absl::StatusOr<Order> order = Order::Build(closed);
    if (!order.ok()) return schedule;  // it cannot run, and Verify refuses it
    Closer closer(closed, *order);
    closer.RemoveImpliedWaits();
    closer.RemoveImpliedEndWaits();
    const bool silenced = RemoveIdleSignals(closed);
    const bool removed = RemoveIdleJoins(closed);
    if (!silenced && !removed) break;
  }
  Renumber(closed);
  return closed;
}

}  // namespace agmm
