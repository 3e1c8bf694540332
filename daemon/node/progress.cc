#include "daemon/node/progress.h"

#include <variant>
#include <vector>

#include "kernels/schedule/text.h"

namespace agmm {
namespace {

v1::StepName NameOf(const LocalPlan& plan, Rank rank, int name, const Step& step) {
  v1::StepName named;
  named.set_rank(plan.problem.mesh.ranks[rank]);
  named.set_lane(step.lane);
  named.set_step(name);
  named.set_text(Describe(plan.problem, step));
  return named;
}

v1::SlotWait WaitFor(const LocalPlan& plan, const Wait& wait) {
  v1::SlotWait waits;
  waits.set_slot(wait.slot.index);
  waits.set_credit(wait.lag > 0);
  const auto& producers = plan.producers[wait.slot.rank];
  const size_t slot = wait.slot.index;
  if (slot >= producers.size() || producers[slot].rank < 0) return waits;
  const auto [rank, index] = producers[slot];
  const int name = plan.names[rank].empty() ? index : plan.names[rank][index];
  *waits.mutable_producer() = NameOf(plan, rank, name, plan.schedule->ranks[rank][index]);
  return waits;
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
  if (state.epoch < first_epoch || state.epoch - first_epoch >= static_cast<uint64_t>(epochs)) {
    // An epoch before the first one belongs to an earlier launch of the plan.
    progress.set_behind(epochs_done < epochs &&
                        (state.behind || (state.epoch > 0 && state.epoch < first_epoch)));
    return progress;
  }
  progress.set_epoch(static_cast<int>(state.epoch - first_epoch) + 1);
  progress.set_for_us((state.at_ns - state.start_ns) * 1e-3);
  progress.set_in_flight_count(state.in_flight);
  for (const LaneState& lane : state.lanes) {
    const Step& step = plan.schedule->ranks[rank][lane.step];
    v1::LaneProgress* now = progress.add_lanes();
    *now->mutable_step() = NameOf(plan, rank, lane.step, step);
    now->set_for_us((state.at_ns - lane.since_ns) * 1e-3);
    now->set_ready(lane.ready);
    AddNetworkBytes(plan, rank, step, now);
    for (const Wait& wait : lane.missing) *now->add_waits() = WaitFor(plan, wait);
  }
  return progress;
}

}  // namespace agmm
