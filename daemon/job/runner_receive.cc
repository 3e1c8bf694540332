// What arrives from other nodes, on the transport's thread.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/job/runner_impl.h"
#include "kernels/base/status.h"
#include "kernels/device/arrival.h"

namespace agmm::runner {

runner::Launch* RunnerImpl::LaunchOf(const Plan& plan, uint64_t epoch) {
  for (const LaunchPtr& launch : plan.launches) {
    if (epoch >= launch->first_epoch &&
        epoch - launch->first_epoch < static_cast<uint64_t>(launch->epochs))
      return launch.get();
  }
  return nullptr;
}

Receiver::Verdict RunnerImpl::Accept(int from_node, const Message& message, int64_t bytes,
                                     Rows* to) {
  std::lock_guard lock(mutex_);
  const PlanPtr plan = FindPlan(message.plan);
  if (plan == nullptr || plan->released || !plan->failure.ok() || message.epoch == 0 ||
      message.epoch > plan->next_epoch + kMaxEpochsBeyond) {
    dropped_->Add();
    return Verdict::kDrop;
  }
  const runner::Launch* launch = LaunchOf(*plan, message.epoch);
  const ArrivalContext context{plan->problem, plan->schedule,
                               plan->nodes,   self_node_,
                               plan->heaps,   launch == nullptr ? nullptr : &launch->operands};
  const absl::StatusOr<Arrival> arrival = ResolveArrival(context, from_node, message, bytes);
  // Right, but early: what it writes has no place before the epoch is launched here.
  if (absl::IsFailedPrecondition(arrival.status()) && message.epoch >= plan->next_epoch) {
    parked_ = true;
    parked_total_->Add();
    return Verdict::kPark;
  }
  if (!arrival.ok()) {
    dropped_->Add();
    return Verdict::kDrop;
  }
  ++plan->receives;
  *to = arrival->to;
  return Verdict::kReceive;
}

// Whoever waits for it would wait for ever.
void RunnerImpl::Lost(int, const Message& message, const absl::Status& why) {
  Actions actions;
  {
    std::lock_guard lock(mutex_);
    const PlanPtr plan = FindPlan(message.plan);
    if (plan == nullptr) return;
    ++busy_;
    Fail(plan, why, &actions);
    Advance(plan, &actions);
  }
  Act(actions);
  EndBusy();
}

void RunnerImpl::Arrived(int from_node, const Message& message, const absl::Status& status) {
  PlanPtr plan;
  bool signal = false;
  {
    std::lock_guard lock(mutex_);
    plan = FindPlan(message.plan);
    if (plan == nullptr) return;
    ++busy_;
    signal = status.ok() && plan->failure.ok();
  }
  if (signal) {
    const Slot slot = plan->schedule.ranks[message.source][message.step].signals[message.part];
    for (const LocalRank& local : plan->locals) {
      if (local.rank == slot.rank) local.executor->Signal(slot.index, message.epoch);
    }
  }
  Actions actions;
  {
    std::lock_guard lock(mutex_);
    --plan->receives;
    if (!status.ok() && plan->failure.ok()) {
      const absl::Status lost(
          absl::StatusCode::kAborted,
          absl::StrFormat("bytes of epoch %d from node %d did not arrive: %s", message.epoch,
                          from_node, std::string(status.message())));
      runner::Launch* launch = LaunchOf(*plan, message.epoch);
      if (launch == nullptr && !plan->launches.empty()) launch = plan->launches.front().get();
      if (launch == nullptr) {
        Fail(plan, lost, &actions);
      } else if (launch->status.ok()) {
        launch->status = lost;
      }
    }
    Advance(plan, &actions);
  }
  Act(actions);
  EndBusy();
}

}  // namespace agmm::runner
