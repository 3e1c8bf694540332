#include "daemon/sequencer/launches.h"

#include <algorithm>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/sequencer/lost_tensors.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/index.h"
#include "proto/convert/rpc_status.h"
#include "proto/convert/time.h"

namespace agmm::scheduler {
namespace {

constexpr size_t kMaxLaunched = 64;
// A job is not launched behind more epochs of its plan than this.
constexpr int64_t kMaxLaunchedEpochs = 4;
// Bound on the workspaces of launched jobs on the same ranks: one in use, the other for the launch
// ahead.
constexpr size_t kMaxWorkspaces = 2;
// Number of drain limits that a node has for a job while its messages are in flight.
constexpr int kMaxDrainLimits = 60;
// Bound on the problems whose T_gemm and T_ag are remembered.
constexpr size_t kMaxBaselines = 4096;

bool NeedsWorkspace(const Job& job) { return job.plan->planned.workspace_bytes > 0; }

// Returns true if one job writes a tensor that the other reads, or if both write it on different
// plans.
bool InConflict(const Job& a, const Job& b) {
  for (const Binding& mine : a.spec.bindings) {
    for (const Binding& theirs : b.spec.bindings) {
      if (mine.tensor != theirs.tensor) continue;
      if (mine.writes != theirs.writes || (mine.writes && a.plan != b.plan)) return true;
    }
  }
  return false;
}

// A job that was launched ahead may have begun before the report of the previous job arrived.
void CorrectStartTime(Job* job) {
  if (!job->record.has_start_time()) return;
  absl::Time began = FromProto(job->record.start_time());
  for (const auto& [rank, report] : job->reports) {
    if (report.start_unix_us() > 0)
      began = std::min(began, absl::FromUnixMicros(static_cast<int64_t>(report.start_unix_us())));
  }
  // The clocks of hosts may differ.
  *job->record.mutable_start_time() =
      ToProto(std::max(began, FromProto(job->record.create_time())));
}

}  // namespace

absl::StatusOr<bool> Launches::Launch(Job* job, absl::Duration left) {
  v1::Command command;
  v1::LaunchJob* launch = command.mutable_launch_job();
  AGMM_RETURN_IF_ERROR(AddOperands(*job, launch));
  if (const absl::Status lent = parts_.plans->BeginLaunch(job->plan); !lent.ok()) {
    // This cannot deadlock, because launched jobs on its ranks have everything that they need to
    // end, and no later job overtakes this one there.
    if (OnRanksOf(*job) != nullptr) return false;
    // There was room at the job's admission, but tensors have taken it since.
    return Annotate(lent, "no room for the job's workspace");
  }
  launch->set_job_id(job->id);
  launch->set_plan_id(job->plan->id);
  launch->set_first_epoch(job->plan->next_epoch);
  launch->set_epoch_count(job->spec.repeat);
  launch->set_workspace_offset_bytes(job->plan->workspace.offset_bytes);
  *launch->mutable_timeout() = ToProto(left);
  job->plan->next_epoch += job->spec.repeat;
  job->warm = job->plan->next_epoch > 2;

  job->launch = next_launch_++;
  launched_[job->launch] = job;
  job->reporting = job->plan->nodes;
  job->behind = LastBefore(*job);
  const std::string from =
      absl::StrFormat("from epoch %d of plan %d", launch->first_epoch(), job->plan->id);
  if (job->behind == nullptr) {
    SetRunning(job, absl::StrCat("launched ", from));
  } else {
    parts_.history->AddEvent(
        job, v1::Job::STATE_QUEUED,
        absl::StrFormat("launched ahead behind job %d, %s", job->behind->id, from));
  }
  for (int node : job->reporting) parts_.members->Send(node, command);
  return true;
}

absl::Status Launches::AddOperands(const Job& job, v1::LaunchJob* launch) const {
  for (const Binding& binding : job.spec.bindings) {
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor,
                          parts_.catalog->Leased(job.leases.at(binding.tensor)));
    if (!binding.writes && tensor.state() != v1::Tensor::STATE_READY) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s stands for %s and has no contents, because the write or the job before it failed, or "
          "had transfers only; write the tensor and submit again",
          Describe(tensor), job.spec.problem.tensors[binding.operand].name));
    }
    launch->add_offset_bytes(tensor.offset_bytes());
    // Identifies the contents forever: a new sequencer starts its ids again at 1, but generations
    // rise.
    launch->add_versions(Fnv1a(absl::StrCat(parts_.members->generation(), " ", tensor.tensor_id(),
                                            " ", tensor.version())));
  }
  return absl::OkStatus();
}

const Job* Launches::LastBefore(const Job& job) const {
  for (auto it = launched_.lower_bound(job.launch); it != launched_.begin();) {
    const Job* before = (--it)->second;
    const std::vector<int>& theirs = before->spec.problem.mesh.ranks;
    const std::vector<int>& mine = job.spec.problem.mesh.ranks;
    const bool occupied = std::any_of(mine.begin(), mine.end(), [&](int rank) {
      return std::count(theirs.begin(), theirs.end(), rank) > 0 &&
             before->reporting.count(parts_.members->ranks()[rank].node) > 0;
    });
    if (occupied) return before;
  }
  return nullptr;
}

void Launches::SetRunning(Job* job, const std::string& message) {
  if (job->ended || job->record.state() == v1::Job::STATE_RUNNING) return;
  job->running_ns = parts_.clock->Nanos();
  if (!job->record.has_start_time())
    *job->record.mutable_start_time() = ToProto(parts_.clock->Now());
  parts_.history->AddEvent(job, v1::Job::STATE_RUNNING, message);
}

// A job is launched before earlier jobs have ended, because each rank runs its launches in order.
// Exceptions:
// - where one reads a tensor that the other writes, because the reader must know how the writer
//   ended;
// - where another plan writes the same tensor, because a requeued launch would come after it;
// - behind many epochs of the same plan, because a node ends the launches of a plan one after the
//   other, and only a job in the queue can be cancelled, or time out, on its own;
// - where the launch would take another workspace from ranks whose jobs have kMaxWorkspaces.
const Job* Launches::BlockerOf(const Job& job) const {
  const Job* first_on_plan = nullptr;
  const Job* first_with_workspace = nullptr;
  std::set<const PreparedPlan*> with_workspace;
  int64_t epochs = 0;
  for (const auto& [number, other] : launched_) {
    if (InConflict(*other, job)) return other;
    if (other->plan != job.plan) {
      if (NeedsWorkspace(*other) && ShareRanks(*other, job)) {
        if (with_workspace.empty()) first_with_workspace = other;
        with_workspace.insert(other->plan);
      }
      continue;
    }
    if (first_on_plan == nullptr) first_on_plan = other;
    epochs += other->spec.repeat;
  }
  if (epochs > kMaxLaunchedEpochs) return first_on_plan;
  if (job.plan->launched == 0 && NeedsWorkspace(job) && with_workspace.size() >= kMaxWorkspaces)
    return first_with_workspace;
  return launched_.size() < kMaxLaunched ? nullptr : launched_.begin()->second;
}

const Job* Launches::OnRanksOf(const Job& job) const {
  for (const auto& [number, other] : launched_) {
    if (ShareRanks(*other, job)) return other;
  }
  return nullptr;
}

const Job* Launches::BeforeOnPlan(const Job& job) const {
  for (const auto& [number, other] : launched_) {
    if (number >= job.launch) break;
    if (other->plan == job.plan) return other;
  }
  return nullptr;
}

std::string Launches::DescribeEnd(const Job& launched) const {
  if (!launched.ended) return absl::StrFormat("job %d, which had not ended", launched.id);
  std::vector<std::string> names;
  for (int node : launched.reporting) names.push_back(parts_.members->node_name(node));
  return absl::StrFormat("job %d, which has ended and had not drained on node %s", launched.id,
                         absl::StrJoin(names, ", "));
}

void Launches::OnDone(int node, const v1::LaunchDone& done) {
  const absl::StatusOr<Job*> found = parts_.history->Find(done.job_id());
  if (!found.ok() || (*found)->launch == 0 || (*found)->reporting.erase(node) == 0) return;
  Job* job = *found;
  const uint64_t number = job->launch;
  job->began |= done.began();
  if (done.began() && job->drain == Job::Drain::kNone &&
      job->record.state() == v1::Job::STATE_QUEUED)
    SetRunning(job, absl::StrCat("has run on node ", parts_.members->node_name(node)));
  for (const v1::RankReport& report : done.ranks()) job->reports[report.rank()] = report;
  if (absl::Status error = FromProto(done.error()); !error.ok()) OnError(job, node, error);
  if (job->reporting.empty()) Finish(job);
  for (auto it = launched_.upper_bound(number); it != launched_.end(); ++it) {
    Job* later = it->second;
    if (later->behind != job) continue;
    later->behind = LastBefore(*later);
    if (later->behind == nullptr && later->drain == Job::Drain::kNone)
      SetRunning(later, absl::StrFormat("job %d has ended on its ranks", job->id));
  }
}

void Launches::OnError(Job* job, int node, const absl::Status& error) {
  if (!job->first_error.ok()) return;
  const std::string& name = parts_.members->node_name(node);
  job->first_error = Annotate(error, absl::StrCat("node ", name));
  const absl::Status others(absl::StatusCode::kAborted,
                            absl::StrFormat("job %d failed on node %s", job->id, name));
  // The other nodes wait for messages that will not arrive.
  Cancel(job, others);
  PreparedPlan* plan = job->plan;
  if (plan->retired) return;
  parts_.plans->Retire(plan);
  for (auto it = launched_.upper_bound(job->launch); it != launched_.end(); ++it) {
    if (it->second->plan == plan) Cancel(it->second, others, Job::Drain::kRequeue);
  }
  parts_.on_plan_failed(plan);
}

void Launches::Cancel(Job* job, const absl::Status& reason, Job::Drain drain) {
  v1::Command command;
  command.mutable_cancel_launch()->set_job_id(job->id);
  *command.mutable_cancel_launch()->mutable_reason() = ToProto(reason);
  for (int node : job->reporting) parts_.members->Send(node, command);
  const bool draining = job->drain != Job::Drain::kNone;
  if (!draining || drain == Job::Drain::kRequeue) job->drain = drain;
  if (draining) return;
  SetDrainTimer(job);
}

void Launches::SetDrainTimer(Job* job) {
  job->drain_timer = parts_.loop->PostAfter(parts_.drain_limit, [this, job] { OnDrainLimit(job); });
}

// A node that sends heartbeats but never ends a cancelled job would otherwise keep the job and its
// memory forever.
void Launches::OnDrainLimit(Job* job) {
  if (BeforeOnPlan(*job) != nullptr) return SetDrainTimer(job);
  parts_.progress->Ask(*job, /*step_times=*/false, ProgressQueries::Asker::kSequencer,
                       [this, launch = job->launch](const ProgressQueries::Answer& answer) {
                         const auto it = launched_.find(launch);
                         if (it != launched_.end()) OnStillDraining(it->second, answer.busy);
                       });
}

// A message on a slow link cannot be recalled. If the link is dead, the transport breaks it.
void Launches::OnStillDraining(Job* job, const std::set<int>& busy) {
  const auto idle = std::find_if(job->reporting.begin(), job->reporting.end(),
                                 [&](int node) { return busy.count(node) == 0; });
  if (idle == job->reporting.end() && ++job->drain_limits < kMaxDrainLimits)
    return SetDrainTimer(job);
  // Ends the generation, and with it every job.
  parts_.members->Lose(
      idle == job->reporting.end() ? *job->reporting.begin() : *idle,
      absl::StrFormat("it did not stop job %d within %s of the cancellation", job->id,
                      absl::FormatDuration(parts_.drain_limit * std::max(job->drain_limits, 1))));
}

void Launches::Finish(Job* job) {
  launched_.erase(job->launch);
  job->launch = 0;
  job->behind = nullptr;
  parts_.plans->EndLaunch(job->plan);
  if (job->drain != Job::Drain::kNone) parts_.loop->Cancel(job->drain_timer);
  if (!job->ended && job->first_error.ok()) {
    MeasureTime(job);
    FillFigures(job);
    CorrectStartTime(job);
  }
  parts_.on_over(job);
}

// Jobs are compared with a running mean to which each earlier job contributed an eighth, so that it
// follows a lasting change. A first epoch, which packs B, does not count.
void Launches::MeasureTime(Job* job) {
  if (!job->warm || job->running_ns == 0) return;
  double& usual_us = job->plan->usual_epoch_us;
  job->took_us = static_cast<double>(parts_.clock->Nanos() - job->running_ns) / 1e3;
  job->usual_us = usual_us * job->spec.repeat;
  const double epoch_us = job->took_us / job->spec.repeat;
  usual_us = usual_us == 0 ? epoch_us : usual_us + (epoch_us - usual_us) / 8;
}

void Launches::FillFigures(Job* job) {
  const ScheduleFacts& facts = job->plan->planned.facts;
  if (!HasProduct(job->spec.problem)) {
    // There is no product that the transfers could be part of.
    *job->record.mutable_figures() = FiguresOf(job->spec.problem, facts, {}, job->reports);
    return;
  }
  const uint64_t generation = parts_.members->generation();
  const absl::Time now = parts_.clock->Now();
  const std::string& problem = job->spec.problem_key;
  const Baseline mine = {PartTimesOf(facts, job->spec.problem.mesh, job->reports), job->id,
                         generation, now};
  const bool serial = mine.parts.gemm_us > 0, gather = !serial && mine.parts.gather_us > 0;
  // A first epoch packs B, so jobs compared with it would look too good.
  if (job->warm && (serial || gather)) {
    if (baselines_.size() >= kMaxBaselines) baselines_.clear();
    (serial ? baselines_[problem].serial : baselines_[problem].gather) = mine;
  }
  Baselines known = BaselinesOf(problem);
  if (serial) known.serial = mine;
  const Baseline baseline = gather ? mine : Combine(known, generation, now);
  v1::JobFigures& figures = *job->record.mutable_figures();
  figures = FiguresOf(job->spec.problem, facts, baseline.parts, job->reports);
  if (baseline.job == 0) return;
  figures.set_baseline_job_id(baseline.job);
  *figures.mutable_baseline_time() = ToProto(baseline.end);
  figures.set_baseline_stale(StaleText(baseline, figures, generation, now));
}

std::string Launches::LaterBaseline(const Job& job) const {
  const v1::JobFigures& figures = job.record.figures();
  const uint64_t from = figures.baseline_job_id();
  if (from == 0 || from == job.id) return "";
  const Baselines known = BaselinesOf(job.spec.problem_key);
  const Baseline now = Combine(known, parts_.members->generation(), parts_.clock->Now());
  const bool gathered = now.parts.gather_us == known.gather.parts.gather_us;
  const uint64_t last = std::max(known.serial.job, gathered ? known.gather.job : 0);
  if (last <= from || !Differ(now.parts, {figures.gemm_us(), figures.gather_us()})) return "";
  return absl::StrFormat("job %d measured T_gemm %s and T_ag %s since", last,
                         FormatMicros(now.parts.gemm_us), FormatMicros(now.parts.gather_us));
}

Baselines Launches::BaselinesOf(const std::string& problem_key) const {
  const auto it = baselines_.find(problem_key);
  return it == baselines_.end() ? Baselines() : it->second;
}

void Launches::Clear() {
  for (auto& [number, job] : std::exchange(launched_, {})) {
    job->launch = 0;
    job->behind = nullptr;
    // Its nodes no longer report if it had begun, so assume that it had.
    job->began = true;
    if (job->drain != Job::Drain::kNone) parts_.loop->Cancel(job->drain_timer);
  }
}

}  // namespace agmm::scheduler
