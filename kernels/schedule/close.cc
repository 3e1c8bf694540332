// Every schedule has one smallest set of waits with the same order of steps (the transitive
// reduction of its graph). With it, each wait that is left carries some order alone, so that
// dropping one is a fault that Verify finds.
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

// A join at the end of its lane that signals nothing: its waits gate the end of the epoch, no step.
bool IsEndJoin(const std::vector<Step>& steps, int index) {
  if (!IsJoin(steps[index]) || !steps[index].signals.empty()) return false;
  for (size_t s = index + 1; s < steps.size(); ++s) {
    if (steps[s].lane == steps[index].lane) return false;
  }
  return true;
}

class Closer {
 public:
  Closer(Schedule& schedule, const Order& order) : schedule_(schedule), order_(order) {}

  // Removes each wait whose event comes before another gate of all that it gates. The order of the
  // steps stays as it is, so `order_` stays true throughout.
  void RemoveImpliedWaits() {
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      for (int s = 0; s < static_cast<int>(schedule_.ranks[rank].size()); ++s) {
        std::vector<Wait>& waits = schedule_.ranks[rank][s].waits;
        const int carrier = CarrierOf(schedule_.ranks[rank][s]);
        for (int i = static_cast<int>(waits.size()) - 1; i >= 0; --i) {
          if (!Implied(rank, s, s, i) || (carrier >= 0 && !Implied(rank, carrier, s, i))) continue;
          waits.erase(waits.begin() + i);
        }
      }
    }
  }

  // The same for joins at the ends of lanes, where the end of the epoch is what is gated.
  void RemoveImpliedEndWaits() {
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      std::vector<Step>& steps = schedule_.ranks[rank];
      for (int s = 0; s < static_cast<int>(steps.size()); ++s) {
        if (!IsEndJoin(steps, s)) continue;
        for (int i = static_cast<int>(steps[s].waits.size()) - 1; i >= 0; --i) {
          if (ImpliedAtEnd(rank, s, i)) steps[s].waits.erase(steps[s].waits.begin() + i);
        }
      }
    }
  }

 private:
  Event SourceOf(const Wait& wait) const { return order_.Source(wait.slot, 1 - wait.lag); }

  // Whether the event of `wait` comes before `gate`, or is it. In epoch 1, where a lag of 1 has a
  // source.
  bool Covers(const Event& gate, const Wait& wait) const {
    const Event event = SourceOf(wait);
    return event == gate || order_.Before(event, gate);
  }

  // Whether a gate of `gated` other than waits[index] of step `owner` covers that wait.
  bool Implied(Rank rank, int gated, int owner, int index) const {
    const std::vector<Step>& steps = schedule_.ranks[rank];
    const Wait& wait = steps[owner].waits[index];
    if (Covers({rank, order_.LanePredecessor(rank, gated), -1, 1}, wait)) return true;
    auto by_wait_of = [&](int step) {
      for (int i = 0; i < static_cast<int>(steps[step].waits.size()); ++i) {
        if (step == owner && i == index) continue;
        if (Covers(SourceOf(steps[step].waits[i]), wait)) return true;
      }
      return false;
    };
    if (by_wait_of(gated)) return true;
    for (int transfer : order_.Carried(rank, gated)) {
      if (by_wait_of(transfer)) return true;
    }
    return false;
  }

  // Whether the rank's epoch ends after waits[index] of the end join `join` without it too. Looks
  // through end joins at their own gates, whose order no removed wait of theirs has changed.
  bool ImpliedAtEnd(Rank rank, int join, int index) const {
    const std::vector<Step>& steps = schedule_.ranks[rank];
    const Wait& wait = steps[join].waits[index];
    std::set<int> followed;
    for (int s = static_cast<int>(steps.size()) - 1; s >= 0; --s) {
      if (!followed.insert(steps[s].lane).second) continue;  // not the last of its lane
      if (!IsEndJoin(steps, s)) {
        if (Covers({rank, s, -1, 1}, wait)) return true;
        continue;
      }
      if (Covers({rank, order_.LanePredecessor(rank, s), -1, 1}, wait)) return true;
      for (int i = 0; i < static_cast<int>(steps[s].waits.size()); ++i) {
        if (s == join && i == index) continue;
        if (Covers(SourceOf(steps[s].waits[i]), wait)) return true;
      }
    }
    return false;
  }

  Schedule& schedule_;
  const Order& order_;
};

// Removes the signals that nobody awaits and whose going moves no arrival's signal from its
// position. True if a join lost its last one.
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
      if (spoke && step.signals.empty() && IsJoin(step)) silenced = true;
    }
  }
  return silenced;
}

// Hands the waits of joins that signal nothing to the next step of the lane, and drops the joins
// that are left without any. True if something changed.
bool RemoveIdleJoins(Schedule& schedule) {
  bool changed = false;
  for (std::vector<Step>& steps : schedule.ranks) {
    std::vector<int> renamed(steps.size(), -1);
    std::vector<Step> kept;
    for (size_t s = 0; s < steps.size(); ++s) {
      Step& step = steps[s];
      if (IsJoin(step) && step.signals.empty()) {
        size_t next = s + 1;
        while (next < steps.size() && steps[next].lane != step.lane) ++next;
        // What a carried transfer waits for gates its multiply too, and would then gate more.
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
    if (!order.ok()) return schedule;  // not one that can run: left as it is, for Verify to refuse
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
