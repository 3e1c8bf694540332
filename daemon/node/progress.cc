#include "daemon/node/progress.h"

#include <map>
#include <set>
#include <variant>

#include "kernels/schedule/action.h"

namespace agmm {
namespace {

v1::StepName NameOf(const LocalPlan& plan, Rank rank, int name, const Step& step) {
  v1::StepName named;
  named.set_rank(plan.problem.mesh.ranks[rank]);
  named.set_lane(step.lane);
  named.set_step(name);
  named.set_text(ActionOf(plan.problem, step).text);
  return named;
}

// The steps that raise the slots. The plan's part of the schedule contains each that raises a slot
// of this node.
std::map<Slot, v1::StepName> ProducersOf(const LocalPlan& plan, const std::set<Slot>& slots) {
  std::map<Slot, v1::StepName> producers;
  if (slots.empty()) return producers;
  for (Rank rank = 0; rank < plan.problem.mesh.size(); ++rank) {
    const std::vector<Step>& steps = plan.schedule->ranks[rank];
    for (size_t index = 0; index < steps.size(); ++index) {
      for (const Slot& slot : steps[index].signals) {
        if (slots.count(slot) == 0) continue;
        const int name =
            plan.names[rank].empty() ? static_cast<int>(index) : plan.names[rank][index];
        producers[slot] = NameOf(plan, rank, name, steps[index]);
      }
    }
  }
  return producers;
}

void AddNetworkBytes(const LocalPlan& plan, Rank rank, const Step& step, v1::LaneProgress* lane) {
  const auto* transfer = std::get_if<Transfer>(&step.op);
  if (transfer == nullptr) return;
  for (const Place& to : transfer->to) {
    if (plan.nodes[to.rank] == plan.nodes[rank]) continue;
    lane->add_to_nodes(plan.nodes[to.rank]);
    lane->set_network_bytes(lane->network_bytes() + transfer->block.rows.size() *
                                                        RowBytes(transfer->block, transfer->from));
  }
}

}  // namespace

v1::RankProgress ProgressOf(const LocalPlan& plan, Rank rank, const RankState& state,
                            uint64_t first_epoch, int epochs, int epochs_done) {
  v1::RankProgress progress;
  progress.set_epochs_done(epochs_done);
  if (state.epoch < first_epoch || state.epoch - first_epoch >= static_cast<uint64_t>(epochs))
    return progress;
  progress.set_epoch(static_cast<int>(state.epoch - first_epoch) + 1);
  progress.set_for_us((state.at_ns - state.start_ns) * 1e-3);
  progress.set_in_flight_count(state.in_flight);
  std::set<Slot> missing;
  for (const LaneState& lane : state.lanes)
    for (const Wait& wait : lane.missing) missing.insert(wait.slot);
  const std::map<Slot, v1::StepName> producers = ProducersOf(plan, missing);
  for (const LaneState& lane : state.lanes) {
    const Step& step = plan.schedule->ranks[rank][lane.step];
    v1::LaneProgress* now = progress.add_lanes();
    *now->mutable_step() = NameOf(plan, rank, lane.step, step);
    now->set_for_us((state.at_ns - lane.since_ns) * 1e-3);
    AddNetworkBytes(plan, rank, step, now);
    for (const Wait& wait : lane.missing) {
      v1::SlotWait* slot = now->add_waits();
      slot->set_slot(wait.slot.index);
      slot->set_credit(wait.lag > 0);
      if (const auto it = producers.find(wait.slot); it != producers.end())
        *slot->mutable_producer() = it->second;
    }
  }
  return progress;
}

}  // namespace agmm
