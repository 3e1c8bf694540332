// What runs: launches are fed to the devices in command order and reported in command order a plan.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/job/runner_impl.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "proto/convert/status.h"

namespace agmm::runner {

void RunnerImpl::Launch(const v1::LaunchJob& command) {
  Actions actions;
  {
    std::lock_guard lock(mutex_);
    if (ending_) return;
    ++busy_;
    if (const PlanPtr plan = FindPlan(command.plan_id()); plan == nullptr || plan->released) {
      v1::LaunchDone* done = reports_.emplace_back().mutable_launch_done();
      done->set_job_id(command.job_id());
      *done->mutable_error() = ToProto(absl::InternalError(
          absl::StrFormat("node %d was to run job %d on plan %d, which it has not prepared",
                          self_node_, command.job_id(), command.plan_id())));
    } else {
      const LaunchPtr launch = Bind(command, plan);
      plan->launches.push_back(launch);
      jobs_[launch->job] = launch;
      if (plan->failure.ok() && launch->status.ok()) {
        for (size_t part = 0; part < plan->locals.size(); ++part)
          devices_[plan->locals[part].device].launches.emplace_back(launch, static_cast<int>(part));
      }
      actions.resume = std::exchange(parked_, false);
      Advance(plan, &actions);
    }
  }
  launched_->Add();
  Act(actions);
  FeedAll();
  EndBusy();
}

RunnerImpl::LaunchPtr RunnerImpl::Bind(const v1::LaunchJob& command, const PlanPtr& plan) {
  auto launch = std::make_shared<runner::Launch>();
  launch->job = command.job_id();
  launch->plan = plan;
  launch->first_epoch = command.first_epoch();
  launch->epochs = command.epoch_count();
  launch->operands.offsets = {command.offset_bytes().begin(), command.offset_bytes().end()};
  launch->operands.versions = {command.versions().begin(), command.versions().end()};
  launch->operands.workspace_offset = command.workspace_offset_bytes();
  launch->deadline = absl::Now() + absl::Seconds(command.timeout().seconds()) +
                     absl::Nanoseconds(command.timeout().nanos());
  launch->parts.resize(plan->locals.size());
  launch->stopped = !plan->failure.ok();
  const size_t operands = plan->problem.tensors.size();
  if (command.first_epoch() != plan->next_epoch || launch->epochs < 1 ||
      launch->operands.offsets.size() != operands || launch->operands.versions.size() != operands) {
    launch->status = absl::InternalError(
        absl::StrFormat("node %d was to run %d epochs from %d with %d operands on plan %d, which "
                        "is at epoch %d and has %d",
                        self_node_, launch->epochs, command.first_epoch(),
                        launch->operands.offsets.size(), plan->id, plan->next_epoch, operands));
  }
  plan->next_epoch = command.first_epoch() + std::max(launch->epochs, 0);
  return launch;
}

void RunnerImpl::FeedAll() {
  size_t devices;
  {
    std::lock_guard lock(mutex_);
    devices = devices_.size();
  }
  for (size_t device = 0; device < devices; ++device) Feed(static_cast<int>(device));
}

// One thread at a time feeds a device, so that epochs are queued in order though the lock is gone
// meanwhile; whoever comes along leaves its work to that one, who looks again after each epoch.
void RunnerImpl::Feed(int device) {
  {
    std::lock_guard lock(mutex_);
    if (devices_[device].feeding) return;
    devices_[device].feeding = true;
    ++busy_;
  }
  while (true) {
    LaunchPtr launch;
    int index = 0;
    uint64_t epoch = 0;
    {
      std::lock_guard lock(mutex_);
      DeviceQueue& queue = devices_[device];
      while (!queue.launches.empty()) {
        const auto& [first, part] = queue.launches.front();
        if (first->status.ok() && first->parts[part].fed < first->epochs) break;
        queue.launches.pop_front();
      }
      if (queue.launches.empty() || queue.outstanding >= kEpochsAhead) {
        queue.feeding = false;
        break;
      }
      std::tie(launch, index) = queue.launches.front();
      Part& part = launch->parts[index];
      epoch = launch->first_epoch + part.fed++;
      ++part.outstanding;
      ++queue.outstanding;
    }
    if (AGMM_FAILPOINT("runner.feed_late")) absl::SleepFor(absl::Milliseconds(100));
    Executor* executor = launch->plan->locals[index].executor.get();
    executor->Run(
        epoch, launch->operands, launch->deadline,
        [this, launch, index](const EpochReport& report) { OnEpochDone(launch, index, report); });
    absl::Status failure;
    {
      std::lock_guard lock(mutex_);
      failure = launch->plan->failure;
    }
    // The plan was cancelled while this epoch was on its way to the executor.
    if (!failure.ok()) executor->Cancel(failure);
  }
  EndBusy();
}

void RunnerImpl::OnEpochDone(const LaunchPtr& launch, int part_index, const EpochReport& report) {
  Actions actions;
  const int device = launch->plan->locals[part_index].device;
  {
    std::lock_guard lock(mutex_);
    ++busy_;
    --devices_[device].outstanding;
    Part& part = launch->parts[part_index];
    --part.outstanding;
    if (part.start_ns == 0) part.start_ns = report.start_ns;
    if (report.status.ok()) {
      ++part.succeeded;
      part.epoch_us.push_back((report.end_ns - report.start_ns) * 1e-3);
      if (part.epoch_us.size() > kEpochTimesKept) part.epoch_us.pop_front();
    } else if (launch->status.ok()) {
      launch->status = report.status;
    }
    if (part.outstanding == 0) part.last = report;
    Advance(launch->plan, &actions);
  }
  Act(actions);
  Feed(device);
  EndBusy();
}

bool RunnerImpl::Over(const runner::Launch& launch) const {
  const bool no_more = launch.stopped || !launch.status.ok();
  return std::all_of(launch.parts.begin(), launch.parts.end(), [&](const Part& part) {
    return part.outstanding == 0 && (no_more || part.fed == launch.epochs);
  });
}

// An executor that is cancelled fails everything queued on it, so a launch is stopped only when
// those before it on the plan are over: they do not suffer for it.
void RunnerImpl::Advance(const PlanPtr& plan, Actions* actions) {
  while (!plan->launches.empty()) {
    const LaunchPtr first = plan->launches.front();
    const bool well = Over(*first) && !first->stopped && first->status.ok();
    const absl::Status& why = first->status.ok() ? first->cancel : first->status;
    if (!well && !why.ok()) Fail(plan, why, actions);
    if (!Over(*first)) return;
    // Its memory is somebody else's after the report.
    if (!plan->failure.ok() && plan->receives > 0) return;
    if (!ending_) reports_.push_back(ReportOf(*first));
    if (const auto it = jobs_.find(first->job); it != jobs_.end() && it->second == first)
      jobs_.erase(it);
    plan->launches.pop_front();
  }
  EraseIfOver(plan);
}

void RunnerImpl::Fail(const PlanPtr& plan, const absl::Status& reason, Actions* actions) {
  if (!plan->failure.ok()) return;
  plan->failure = reason;
  for (const LaunchPtr& launch : plan->launches) launch->stopped = true;
  for (DeviceQueue& device : devices_) {
    const auto gone = std::remove_if(device.launches.begin(), device.launches.end(),
                                     [&](const auto& entry) { return entry.first->plan == plan; });
    device.launches.erase(gone, device.launches.end());
  }
  actions->cancels.emplace_back(plan, reason);
  // What is parked for an epoch of it that no launch will bring is offered again, and dropped.
  actions->resume |= std::exchange(parked_, false);
}

void RunnerImpl::Cancel(const v1::CancelLaunch& command) {
  Actions actions;
  {
    std::lock_guard lock(mutex_);
    const auto it = jobs_.find(command.job_id());
    if (it == jobs_.end()) return;
    const LaunchPtr launch = it->second;
    ++busy_;
    absl::Status reason = FromProto(command.reason());
    if (reason.ok())
      reason = absl::CancelledError(absl::StrFormat("job %d was cancelled", launch->job));
    if (launch->cancel.ok()) launch->cancel = reason;
    Advance(launch->plan, &actions);
  }
  Act(actions);
  EndBusy();
}

v1::Report RunnerImpl::ReportOf(const runner::Launch& launch) const {
  const Plan& plan = *launch.plan;
  v1::Report report;
  v1::LaunchDone* done = report.mutable_launch_done();
  done->set_job_id(launch.job);
  absl::Status status = launch.status;
  if (status.ok() && launch.stopped) status = plan.failure;
  // Where it stood when its time ran out says little of a job that is only long.
  if (absl::IsDeadlineExceeded(status) && launch.epochs > 1) {
    int succeeded = launch.epochs;
    for (const Part& part : launch.parts) succeeded = std::min(succeeded, part.succeeded);
    status = Annotate(status, absl::StrFormat("%d of %d epochs done", succeeded, launch.epochs));
  }
  if (!status.ok()) *done->mutable_error() = ToProto(status);
  // Steps are stamped by a clock that only this host has.
  const int64_t wall_ns = absl::ToUnixNanos(absl::Now()), now_ns = MonotonicNanos();
  for (size_t i = 0; i < plan.locals.size(); ++i) {
    const Part& part = launch.parts[i];
    if (part.start_ns > 0) done->set_began(true);
    v1::RankReport* rank = done->add_ranks();
    rank->set_rank(plan.problem.mesh.ranks[plan.locals[i].rank]);
    rank->set_node(self_node_);
    rank->mutable_epoch_us()->Add(part.epoch_us.begin(), part.epoch_us.end());
    const auto unix_us = [&](int64_t at_ns) {
      return at_ns == 0 ? 0 : (wall_ns - (now_ns - at_ns)) * 1e-3;
    };
    rank->set_start_unix_us(unix_us(part.start_ns));
    rank->set_epoch_start_unix_us(unix_us(part.last.start_ns));
    for (const StepTime& step : part.last.steps) {
      v1::StepTime* time = rank->add_steps();
      if (step.start_ns > 0) time->set_start_us((step.start_ns - part.last.start_ns) * 1e-3);
      if (step.end_ns > 0) time->set_end_us((step.end_ns - part.last.start_ns) * 1e-3);
    }
  }
  return report;
}

}  // namespace agmm::runner
