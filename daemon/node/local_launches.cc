#include "daemon/node/local_launches.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "kernels/schedule/text.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {

// Bound on the epochs that a device has received and not run. It is high enough that the device
// never waits for the runner.
constexpr int kMaxQueuedEpochs = 4;
constexpr size_t kEpochTimesKept = 64;

// Returns true if no epoch of `launch` is outstanding, and none will be fed.
bool Over(const LocalLaunch& launch) {
  const bool no_more = launch.stopped || !launch.status.ok();
  return std::all_of(launch.shares.begin(), launch.shares.end(),
                     [&](const LocalLaunch::RankShare& share) {
                       return share.outstanding == 0 && (no_more || share.fed == launch.epochs);
                     });
}

// Steps are stamped by this host's monotonic clock; reports carry wall time.
int64_t WallOffsetNanos() { return absl::ToUnixNanos(absl::Now()) - MonotonicNanos(); }

double UnixMicros(int64_t at_ns, int64_t wall_offset_ns) {
  return at_ns == 0 ? 0 : (at_ns + wall_offset_ns) * 1e-3;
}

void SetSteps(const std::vector<StepTime>& steps, int64_t start_ns, v1::RankReport* rank) {
  rank->mutable_steps()->Reserve(static_cast<int>(steps.size()));
  for (const StepTime& step : steps) {
    v1::StepTime* time = rank->add_steps();
    if (step.start_ns > 0) time->set_start_us((step.start_ns - start_ns) * 1e-3);
    if (step.end_ns > 0) time->set_end_us((step.end_ns - start_ns) * 1e-3);
  }
}

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
    if (plan.peers.nodes[to.rank] == plan.peers.nodes[rank]) continue;
    lane->add_to_nodes(plan.peers.nodes[to.rank]);
    lane->set_network_bytes(lane->network_bytes() + transfer->block.rows.size() *
                                                        RowBytes(transfer->block, transfer->from));
  }
}

// The progress of a rank in a launch that begins with `first_epoch`; epochs of other launches do
// not count. Reads only state that is constant after LocalPlan::Prepare.
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

}  // namespace

LocalLaunches::LocalLaunches(int self_node, size_t devices, CallQueue* calls, Plans* plans,
                             std::function<void(v1::Report)> report, std::function<void()> unparked)
    : self_node_(self_node),
      calls_(calls),
      plans_(plans),
      report_(std::move(report)),
      unparked_(std::move(unparked)),
      devices_(devices) {}

void LocalLaunches::Add(const v1::LaunchJob& command, const PlanPtr& plan) {
  if (plan == nullptr || plan->released) {
    v1::Report report;
    report.mutable_launch_done()->set_job_id(command.job_id());
    *report.mutable_launch_done()->mutable_error() = ToProto(absl::InternalError(
        absl::StrFormat("node %d cannot run job %d on plan %d, which it has not prepared",
                        self_node_, command.job_id(), command.plan_id())));
    return report_(std::move(report));
  }
  const LaunchPtr launch = Bind(command, plan);
  plan->next_epoch = launch->first_epoch + std::max(launch->epochs, 0);
  plan->launches.push_back(launch);
  jobs_[launch->job] = launch;
  if (plan->failure.ok() && launch->status.ok()) {
    for (size_t index = 0; index < plan->locals.size(); ++index)
      devices_[plan->locals[index].device].launches.emplace_back(launch, static_cast<int>(index));
  }
  unparked_();
  Advance(plan);
  for (const LocalPlan::LocalRank& local : plan->locals) Feed(local.device);
}

LaunchPtr LocalLaunches::Bind(const v1::LaunchJob& command, const PlanPtr& plan) const {
  auto launch = std::make_shared<LocalLaunch>();
  launch->job = command.job_id();
  launch->plan = plan;
  launch->first_epoch = command.first_epoch();
  launch->epochs = command.epoch_count();
  launch->operands.offsets = {command.offset_bytes().begin(), command.offset_bytes().end()};
  launch->operands.versions = {command.versions().begin(), command.versions().end()};
  launch->operands.workspace_offset = command.workspace_offset_bytes();
  launch->deadline = Deadline::After(absl::Seconds(command.timeout().seconds()) +
                                     absl::Nanoseconds(command.timeout().nanos()));
  launch->shares.resize(plan->locals.size());
  launch->stopped = !plan->failure.ok();
  const size_t operands = plan->problem.tensors.size();
  if (command.first_epoch() != plan->next_epoch || launch->epochs < 1 ||
      launch->operands.offsets.size() != operands || launch->operands.versions.size() != operands) {
    launch->status = absl::InternalError(
        absl::StrFormat("node %d cannot run %d epochs from %d with %d operands on plan %d, "
                        "which is at epoch %d and has %d operands",
                        self_node_, launch->epochs, command.first_epoch(),
                        launch->operands.offsets.size(), plan->id, plan->next_epoch, operands));
  }
  return launch;
}

void LocalLaunches::Feed(int device) {
  DeviceQueue& queue = devices_[device];
  while (!queue.launches.empty() && queue.outstanding < kMaxQueuedEpochs) {
    const auto [launch, index] = queue.launches.front();
    LocalLaunch::RankShare& share = launch->shares[index];
    if (!launch->status.ok() || share.fed == launch->epochs) {
      queue.launches.pop_front();
      continue;
    }
    const uint64_t epoch = launch->first_epoch + share.fed++;
    ++share.outstanding;
    ++queue.outstanding;
    calls_->Add([this, launch = launch, index = index, epoch] {
      if (AGMM_FAILPOINT("runner.feed_late")) absl::SleepFor(absl::Milliseconds(100));
      launch->plan->locals[index].executor->Run(
          epoch, launch->operands, launch->deadline,
          [this, launch, index](const EpochReport& report) { OnEpochDone(launch, index, report); });
    });
  }
}

void LocalLaunches::OnEpochDone(const LaunchPtr& launch, int index, const EpochReport& report) {
  const int device = launch->plan->locals[index].device;
  calls_->Do([&] {
    --devices_[device].outstanding;
    LocalLaunch::RankShare& share = launch->shares[index];
    --share.outstanding;
    if (share.start_ns == 0) share.start_ns = report.start_ns;
    if (report.status.ok()) {
      ++share.succeeded;
      share.epoch_us.push_back((report.end_ns - report.start_ns) * 1e-3);
      if (share.epoch_us.size() > kEpochTimesKept) share.epoch_us.pop_front();
    } else if (launch->status.ok()) {
      launch->status = report.status;
    }
    if (report.start_ns > 0 && (share.outstanding == 0 || !report.status.ok())) share.last = report;
    Advance(launch->plan);
    Feed(device);
  });
}

// A cancelled executor fails everything queued on it, so a launch is stopped only when the earlier
// launches of its plan have ended.
void LocalLaunches::Advance(const PlanPtr& plan) {
  while (!plan->launches.empty()) {
    const LaunchPtr first = plan->launches.front();
    const bool well = Over(*first) && !first->stopped && first->status.ok();
    const absl::Status& why = first->status.ok() ? first->cancel : first->status;
    if (!well && !why.ok()) Fail(plan, why);
    if (!Over(*first)) return;
    // The report frees the launch's memory, so no message may still be writing to it.
    if (!plan->failure.ok() && plan->receives > 0) return;
    report_(ReportOf(*first));
    if (const auto it = jobs_.find(first->job); it != jobs_.end() && it->second == first)
      jobs_.erase(it);
    plan->launches.pop_front();
  }
  EraseIfOver(plan, plans_);
}

void LocalLaunches::Fail(const PlanPtr& plan, const absl::Status& reason) {
  if (!plan->failure.ok()) return;
  plan->failure = reason;
  for (const LaunchPtr& launch : plan->launches) launch->stopped = true;
  // Queued after the Run of every fed epoch.
  calls_->Add([plan, reason] {
    for (const LocalPlan::LocalRank& local : plan->locals) local.executor->Cancel(reason);
  });
  // Parked messages for an epoch that will never be launched are offered again, and then dropped.
  unparked_();
  for (size_t device = 0; device < devices_.size(); ++device) {
    std::erase_if(devices_[device].launches,
                  [&](const auto& entry) { return entry.first->plan == plan; });
    Feed(static_cast<int>(device));
  }
}

void LocalLaunches::Cancel(uint64_t job, const absl::Status& reason) {
  const auto it = jobs_.find(job);
  if (it == jobs_.end()) return;
  const LaunchPtr launch = it->second;
  if (launch->cancel.ok()) launch->cancel = reason;
  Advance(launch->plan);
}

void LocalLaunches::FailEpoch(const PlanPtr& plan, uint64_t epoch, const absl::Status& reason) {
  LocalLaunch* launch = Find(*plan, epoch);
  if (launch == nullptr && !plan->launches.empty()) launch = plan->launches.front().get();
  if (launch == nullptr) {
    Fail(plan, reason);
  } else if (launch->status.ok()) {
    launch->status = reason;
  }
}

LocalLaunch* LocalLaunches::Find(const LocalPlan& plan, uint64_t epoch) {
  for (const LaunchPtr& launch : plan.launches) {
    if (epoch >= launch->first_epoch &&
        epoch - launch->first_epoch < static_cast<uint64_t>(launch->epochs))
      return launch.get();
  }
  return nullptr;
}

v1::Report LocalLaunches::ReportOf(const LocalLaunch& launch) const {
  const LocalPlan& plan = *launch.plan;
  v1::Report report;
  v1::LaunchDone* done = report.mutable_launch_done();
  done->set_job_id(launch.job);
  absl::Status status = launch.status;
  if (status.ok() && launch.stopped) status = plan.failure;
  // The step that was running at the deadline explains little if a job is merely long.
  if (absl::IsDeadlineExceeded(status) && launch.epochs > 1) {
    int succeeded = launch.epochs;
    for (const LocalLaunch::RankShare& share : launch.shares)
      succeeded = std::min(succeeded, share.succeeded);
    status = Annotate(status, absl::StrFormat("%d of %d epochs done", succeeded, launch.epochs));
  }
  if (!status.ok()) *done->mutable_error() = ToProto(status);
  const int64_t wall_offset_ns = WallOffsetNanos();
  for (size_t index = 0; index < plan.locals.size(); ++index) {
    if (launch.shares[index].start_ns > 0) done->set_began(true);
    v1::RankReport* rank = done->add_ranks();
    *rank = RankReportOf(launch, index, wall_offset_ns);
    const EpochReport& last = launch.shares[index].last;
    SetSteps(last.steps, last.start_ns, rank);
    if (status.ok()) continue;
    *rank->mutable_progress() =
        ProgressOf(plan, plan.locals[index].rank, last.stopped, launch.first_epoch, launch.epochs,
                   launch.shares[index].succeeded);
  }
  return report;
}

v1::RankReport LocalLaunches::RankReportOf(const LocalLaunch& launch, size_t index,
                                           int64_t wall_offset_ns) const {
  const LocalPlan& plan = *launch.plan;
  const LocalLaunch::RankShare& share = launch.shares[index];
  const Rank local = plan.locals[index].rank;
  v1::RankReport rank;
  rank.set_rank(plan.problem.mesh.ranks[local]);
  rank.set_node(self_node_);
  if (!plan.peers.islands.empty()) rank.set_island(plan.peers.islands[local]);
  rank.mutable_epoch_us()->Add(share.epoch_us.begin(), share.epoch_us.end());
  rank.set_start_unix_us(UnixMicros(share.start_ns, wall_offset_ns));
  rank.set_epoch_start_unix_us(UnixMicros(share.last.start_ns, wall_offset_ns));
  return rank;
}

void LocalLaunches::Observe(const v1::ReportProgress& query,
                            const std::vector<v1::NodePath>& paths) {
  // The answers arrive on any thread.
  struct Answer {
    std::mutex mutex;
    v1::Report report;
    size_t missing = 0;
  };
  auto answer = std::make_shared<Answer>();
  v1::LaunchProgress* const progress = answer->report.mutable_launch_progress();
  progress->set_query_id(query.query_id());
  *progress->mutable_paths() = {paths.begin(), paths.end()};
  const auto it = jobs_.find(query.job_id());
  if (it == jobs_.end()) return report_(std::move(answer->report));
  const LaunchPtr& launch = it->second;
  progress->set_arriving_count(launch->plan->receives);
  answer->missing = launch->shares.size();
  const int64_t wall_offset_ns = WallOffsetNanos();
  for (size_t index = 0; index < launch->shares.size(); ++index) {
    *progress->add_ranks() = RankReportOf(*launch, index, wall_offset_ns);
    const auto observed = [this, launch, index, answer, wall_offset_ns,
                           done = launch->shares[index].succeeded,
                           stopped = launch->shares[index].last.stopped](const RankState& now) {
      const LocalPlan& plan = *launch->plan;
      const RankState& state = now.epoch == 0 && stopped.epoch > 0 ? stopped : now;
      v1::RankProgress where = ProgressOf(plan, plan.locals[index].rank, state, launch->first_epoch,
                                          launch->epochs, done);
      std::unique_lock lock(answer->mutex);
      v1::RankReport* rank = answer->report.mutable_launch_progress()->mutable_ranks(index);
      if (where.epoch() > 0) {
        rank->set_epoch_start_unix_us(UnixMicros(state.start_ns, wall_offset_ns));
        SetSteps(state.steps, state.start_ns, rank);
      }
      rank->mutable_progress()->Swap(&where);
      if (--answer->missing > 0) return;
      lock.unlock();
      calls_->Do([&] { report_(std::move(answer->report)); });
    };
    calls_->Add([launch, index, times = query.step_times(), observed] {
      launch->plan->locals[index].executor->Observe(times, observed);
    });
  }
}

}  // namespace agmm
