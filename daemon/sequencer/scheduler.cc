#include "daemon/sequencer/scheduler.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/sequencer/hardware.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

using scheduler::History;
using scheduler::ProgressQueries;

// Time from a launched job's deadline until the sequencer itself ends it: the nodes notice the
// deadline themselves, and know which rank waited for which.
constexpr absl::Duration kDeadlineGrace = absl::Milliseconds(250);

// Returns the record without ranks and events, which are most of it, and does not copy them.
v1::Job WithoutRanks(v1::Job* record) {
  v1::Job most;
  most.mutable_ranks()->Swap(record->mutable_ranks());
  most.mutable_events()->Swap(record->mutable_events());
  v1::Job job = *record;
  record->mutable_ranks()->Swap(most.mutable_ranks());
  record->mutable_events()->Swap(most.mutable_events());
  return job;
}

// The error of a job whose own timeout has passed. `found`: "it was queued, and waited for ...".
absl::Status LateError(const scheduler::Job& job, absl::string_view found) {
  return WithReason(absl::DeadlineExceededError(absl::StrFormat(
                        "job %d did not end within its timeout of %s: %s; if it needs longer, "
                        "give it a longer timeout",
                        job.id, absl::FormatDuration(job.spec.timeout), found)),
                    kReasonDeadline);
}

auto ReplyWithRecord(Reply<v1::Job> reply) {
  return [reply = std::move(reply)](const absl::Status& status, const scheduler::Job& job) {
    status.ok() ? reply(job.record) : reply(status);
  };
}

}  // namespace

Scheduler::Scheduler(const Parts& parts)
    : loop_(parts.loop),
      clock_(parts.clock),
      members_(parts.members),
      placement_(parts.placement),
      catalog_(parts.catalog),
      transport_(parts.transport),
      basis_(parts.basis),
      workspaces_(parts.placement, parts.metrics),
      plans_(parts.members, &workspaces_, parts.loop, parts.planners, parts.plan_cache_bytes,
             parts.metrics, [this](PreparedPlan* plan) { OnPlan(plan); }),
      history_(parts.members, parts.loop, parts.clock, parts.metrics, parts.history, parts.journal),
      launches_({parts.loop, parts.clock, parts.members, parts.catalog, &plans_, &history_,
                 &progress_, parts.drain_limit,
                 [this](PreparedPlan* plan) { queue_.DropPlan(plan); },
                 [this](Job* job) { OnLaunchOver(job); }}),
      queue_({parts.members, parts.catalog, &plans_, &launches_, [this] { RequestPump(); }}),
      progress_(parts.members, parts.loop) {
  placement_->set_reclaim([this](const std::vector<int>& ranks, int64_t bytes) {
    return workspaces_.Reclaim(ranks, bytes);
  });
}

Scheduler::~Scheduler() { placement_->set_reclaim(nullptr); }

void Scheduler::SubmitJob(const CallContext& ctx, const v1::SubmitJobRequest& request,
                          Reply<v1::Job> reply) {
  SubmitAndAwait(ctx, request, {0, ReplyWithRecord(std::move(reply)), ctx.cancel});
}

void Scheduler::RunJob(const CallContext& ctx, const v1::SubmitJobRequest& request,
                       Reply<v1::Job> reply) {
  const auto wake = [reply = std::move(reply)](const absl::Status& status, Job& job) {
    status.ok() ? reply(WithoutRanks(&job.record)) : reply(status);
  };
  SubmitAndAwait(ctx, request, {History::kUntilEnd, wake, ctx.cancel});
}

bool Scheduler::HasRoom(const CallContext& ctx, const std::string& request_id) {
  return queue_.CheckRoom(ctx.principal).ok() || history_.Knows(request_id);
}

void Scheduler::SubmitAndAwait(const CallContext& ctx, const v1::SubmitJobRequest& request,
                               Waiter waiter) {
  absl::StatusOr<Job*> job = history_.FindRequest(request);
  if (job.ok() && *job == nullptr) job = Submit(ctx, request);
  if (!job.ok()) {
    Job none;
    return waiter.wake(job.status(), none);
  }
  // The job's own timeout bounds the wait.
  history_.Await(*job, Deadline::Infinite(), std::move(waiter));
}

void Scheduler::GetJob(const CallContext& ctx, const v1::GetJobRequest& request,
                       Reply<v1::Job> reply) {
  if (!absl::StartsWith(members_->incarnation(), request.sequencer()))
    return reply(history_.FindEarlier(request.job_id(), request.sequencer()));
  const absl::StatusOr<Job*> found = history_.Find(request.job_id());
  if (!found.ok()) return reply(found.status());
  const Job& job = **found;
  if (!request.progress() || job.ended) return reply(Record(job));
  if (job.launch == 0) {
    v1::Job record = job.record;
    *record.mutable_waits_for() = queue_.WaitOf(job);
    return reply(std::move(record));
  }
  progress_.Ask(job, request.step_times(), ProgressQueries::Asker::kClient,
                [this, id = job.id, cancel = ctx.cancel,
                 reply = std::move(reply)](const ProgressQueries::Answer& answer) {
                  if (absl::Status gone = cancel->status(); !gone.ok()) return reply(gone);
                  const absl::StatusOr<Job*> job = history_.Find(id);
                  job.ok() ? reply(RecordWith(**job, answer)) : reply(job.status());
                });
}

v1::Job Scheduler::Record(const Job& job) const {
  v1::Job record = history_.WithSteps(job);
  if (std::string later = launches_.LaterBaseline(job); !later.empty())
    record.mutable_figures()->set_baseline_stale(std::move(later));
  return record;
}

v1::Job Scheduler::RecordWith(const Job& job, const ProgressQueries::Answer& answer) const {
  if (job.ended) return Record(job);
  v1::Job record = job.record;
  for (const auto& [rank, report] : answer.ranks) *record.add_ranks() = report;
  for (const v1::NodePath& path : answer.paths) *record.add_node_paths() = path;
  for (int node : answer.silent) record.add_silent_nodes(members_->node_name(node));
  if (job.behind != nullptr) {
    v1::QueueWait* wait = record.mutable_waits_for();
    wait->set_reason(launches_.DescribeEnd(*job.behind));
    wait->set_job_id(job.behind->id);
    for (int rank : scheduler::RanksOfBoth(job, *job.behind)) wait->add_ranks(rank);
  }
  return record;
}

void Scheduler::WaitJob(const CallContext& ctx, const v1::WaitJobRequest& request,
                        Reply<v1::Job> reply) {
  const absl::StatusOr<Job*> job = history_.Find(request.job_id());
  if (!job.ok()) return reply(job.status());
  history_.Await(*job, ctx.deadline,
                 {History::kUntilEnd, ReplyWithRecord(std::move(reply)), ctx.cancel});
}

void Scheduler::PollJob(const CallContext& ctx, const v1::WatchJobRequest& request,
                        Reply<std::vector<v1::WatchJobResponse>> reply) {
  const absl::StatusOr<Job*> job = history_.Find(request.job_id());
  if (!job.ok()) return reply(job.status());
  const int64_t after = request.after_event();
  const auto wake = [reply = std::move(reply), after](const absl::Status& status, const Job& job) {
    if (!status.ok()) return reply(status);
    std::vector<v1::WatchJobResponse> responses;
    for (const v1::JobEvent& event : job.record.events())
      if (event.number() > after) *responses.emplace_back().mutable_event() = event;
    if (job.ended) {
      if (responses.empty()) responses.emplace_back();
      *responses.back().mutable_job() = job.record;
    }
    reply(std::move(responses));
  };
  history_.Await(*job, ctx.deadline, {after, wake, ctx.cancel});
}

void Scheduler::CancelJob(const CallContext&, const v1::CancelJobRequest& request,
                          Reply<v1::Job> reply) {
  const absl::StatusOr<Job*> job = history_.Find(request.job_id());
  if (!job.ok()) return reply(job.status());
  Cancel(*job, absl::CancelledError(absl::StrFormat("job %d was cancelled", (*job)->id)));
  reply((*job)->record);
}

absl::StatusOr<Scheduler::Job*> Scheduler::Submit(const CallContext& ctx,
                                                  const v1::SubmitJobRequest& request) {
  AGMM_RETURN_IF_ERROR(members_->Ready({}));
  AGMM_RETURN_IF_ERROR(queue_.CheckRoom(ctx.principal));
  AGMM_RETURN_IF_ERROR(history_.CheckRoom(request));
  const auto will_be_written = [this](uint64_t tensor) { return queue_.IsWritten(tensor); };
  auto owned = std::make_unique<Job>();
  JobSpec& spec = owned->spec;
  AGMM_ASSIGN_OR_RETURN(spec, Admit(request, *members_, *catalog_, will_be_written));
  SetBasis(request, &spec);
  PreparedPlan* plan = plans_.Retiring(spec.plan_key) ? nullptr : plans_.Hold(spec);
  owned->plan = plan;
  if (const absl::Status made = MakeResults(ctx, request.session_id(), &spec); !made.ok()) {
    if (plan != nullptr) plans_.LetGo(plan);
    return made;
  }
  FillRecord(ctx, request, owned.get());
  Job* job = history_.Add(std::move(owned), request);
  job->deadline = Deadline::After(spec.timeout, clock_->Nanos());
  job->deadline_timer = loop_->PostAfter(spec.timeout, [this, job] { OnDeadline(job); });
  queue_.Add(job);
  if (plan != nullptr && plan->planning) return job;
  // Checked after the tensors that were made for the job have taken their places.
  if (const absl::Status room = plan == nullptr ? absl::OkStatus() : plans_.CheckRoom(*plan);
      !room.ok()) {
    Withdraw(job, room);
    return room;
  }
  history_.AddEvent(job, v1::Job::STATE_QUEUED, "admitted");
  return job;
}

void Scheduler::SetBasis(const v1::SubmitJobRequest& request, JobSpec* spec) const {
  PlanBasis basis = basis_ ? basis_() : PlanBasis();
  if (basis.machine == nullptr) return;
  // Another machine, or another tuned plan, may have another choice.
  spec->machine = std::move(basis.machine);
  absl::StrAppend(&spec->plan_key, " machine ", spec->machine->name, " ", spec->machine->version);
  const std::vector<int>& ranks = spec->problem.mesh.ranks;
  for (const int rank : ranks) {
    const int64_t heap = members_->ranks()[rank].heap_bytes;
    if (spec->heap_bytes == 0 || heap < spec->heap_bytes) spec->heap_bytes = heap;
  }
  // A named algorithm is not chosen.
  if (basis.tuning == nullptr || request.ignore_tuning() || spec->options.algorithm != "auto")
    return;
  spec->tuned = basis.tuning->Find(TuningKeyOf(spec->problem, spec->topology, *spec->machine,
                                               HardwareOf(ranks, members_->ranks())));
  if (spec->tuned.plan == nullptr) return;
  spec->tuning = std::move(basis.tuning);
  absl::StrAppend(&spec->plan_key, " tuned ", ToString(*spec->tuned.plan));
}

absl::Status Scheduler::MakeResults(const CallContext& ctx, const std::string& session_id,
                                    JobSpec* spec) {
  for (Binding& binding : spec->bindings) {
    if (binding.new_name.empty()) continue;
    v1::CreateTensorRequest create;
    create.set_name(binding.new_name);
    create.set_session_id(session_id);
    *create.mutable_spec() = ToProto(spec->problem.mesh, spec->problem.tensors[binding.operand]);
    const absl::StatusOr<uint64_t> made = catalog_->CreateAtOnce(ctx, create);
    if (!made.ok()) {
      DeleteMade(*spec);
      return made.status();
    }
    binding.tensor = *made;
  }
  return absl::OkStatus();
}

void Scheduler::DeleteMade(const JobSpec& spec) {
  for (const Binding& binding : spec.bindings) {
    if (binding.new_name.empty() || binding.tensor == 0) continue;
    v1::DeleteTensorRequest request;
    request.set_tensor_id(binding.tensor);
    catalog_->DeleteTensor({}, request, [](const absl::StatusOr<v1::DeleteTensorResponse>&) {});
  }
}

void Scheduler::FillRecord(const CallContext& ctx, const v1::SubmitJobRequest& request,
                           Job* job) const {
  const JobSpec& spec = job->spec;
  const Problem& problem = spec.problem;
  v1::Job& record = job->record;
  record.set_session_id(request.session_id());
  record.set_spec(request.spec());
  SetProblem(problem, &record);
  for (const Binding& binding : spec.bindings) {
    record.add_tensor_ids(binding.tensor);
    v1::Operand* operand = record.mutable_operands(binding.operand);
    operand->set_tensor_id(binding.tensor);
    operand->set_written(binding.writes);
  }
  RecordPlan(job);
  record.set_repeat_count(spec.repeat);
  *record.mutable_timeout() = ToProto(spec.timeout);
  record.set_owner(ctx.principal);
  record.set_generation(members_->generation());
  std::set<std::string> engines;
  for (int rank : problem.mesh.ranks) engines.insert(members_->ranks()[rank].device);
  record.set_engine(absl::StrJoin(engines, "; "));
  const std::vector<int>& nodes = spec.topology.node_of_rank;
  if (std::count(nodes.begin(), nodes.end(), nodes[0]) != static_cast<int64_t>(nodes.size()))
    record.set_transport(transport_);
}

void Scheduler::OnPlan(PreparedPlan* plan) {
  const absl::Status error = plan->error;
  for (Job* job : queue_.JobsOn(plan)) {
    const bool admitted = job->record.events_size() > 0;
    if (error.ok()) {
      RecordPlan(job);
      if (!admitted) history_.AddEvent(job, v1::Job::STATE_QUEUED, "admitted");
    } else if (admitted) {
      End(job, v1::Job::STATE_FAILED, error);
    } else {
      Withdraw(job, error);
    }
  }
  RequestPump();
}

void Scheduler::RequestPump() {
  if (std::exchange(pump_requested_, true)) return;
  loop_->Post([this] {
    pump_requested_ = false;
    Pump();
  });
}

void Scheduler::Pump() {
  history_.Trim();
  // Between two generations no command is sent, and the queued jobs are about to end.
  if (!members_->Ready({}).ok()) return;
  queue_.HoldPlans();
  // Ranks of jobs that must wait, because each rank runs its jobs in the order of admission. Only
  // jobs that wait for plans are passed by others.
  std::set<int> taken;
  scheduler::Passed passed;
  const std::map<uint64_t, Job*>& jobs = queue_.jobs();
  for (auto it = jobs.begin(); it != jobs.end() && taken.size() < members_->ranks().size();) {
    Job* job = it->second;
    ++it;  // the job may leave the queue
    const std::vector<int>& ranks = job->spec.problem.mesh.ranks;
    if (std::any_of(ranks.begin(), ranks.end(), [&](int rank) { return taken.count(rank) > 0; })) {
      taken.insert(ranks.begin(), ranks.end());
    } else if (!job->lease_error.ok()) {
      End(job, v1::Job::STATE_FAILED, job->lease_error);
    } else if (passed.Waits(*job)) {
      if (!passed.Add(*job)) taken.insert(ranks.begin(), ranks.end());
    } else if (!queue_.IsReady(*job) || !Launch(job)) {
      taken.insert(ranks.begin(), ranks.end());
    }
  }
}

bool Scheduler::Launch(Job* job) {
  const absl::Duration left = job->deadline.Left(clock_->Nanos());
  if (left <= absl::ZeroDuration()) {
    OnDeadline(job);
    return true;
  }
  const absl::StatusOr<bool> launched = launches_.Launch(job, left);
  if (!launched.ok()) {
    End(job, v1::Job::STATE_FAILED, launched.status());
  } else if (*launched) {
    queue_.Remove(job);
  }
  return !launched.ok() || *launched;
}

void Scheduler::OnLaunchOver(Job* job) {
  if (job->ended) {
    history_.KeepReports(job);
    return queue_.ReleaseAll(job, false);
  }
  const bool failed = !job->first_error.ok();
  if (failed && job->drain == Job::Drain::kRequeue && job->end_as.ok()) return Requeue(job);
  if (!failed) {
    End(job, v1::Job::STATE_SUCCEEDED, absl::OkStatus());
  } else if (!job->end_as.ok()) {
    End(job, v1::Job::STATE_CANCELLED, job->end_as);
  } else {
    End(job, v1::Job::STATE_FAILED, ErrorOf(*job, job->first_error));
  }
}

void Scheduler::Requeue(Job* job) {
  job->drain = Job::Drain::kNone;
  job->drain_limits = 0;
  job->first_error = absl::OkStatus();
  job->reports.clear();
  queue_.Requeue(job);
  if (job->deadline.HasPassed(clock_->Nanos())) return OnDeadline(job);
  history_.AddEvent(job, v1::Job::STATE_QUEUED, "requeued: an earlier job failed on the same plan");
}

std::map<std::string, int> Scheduler::JobsBySession() const {
  std::map<std::string, int> counts;
  for (const Job* job : OpenJobs())
    if (!job->ended && !job->record.session_id().empty()) ++counts[job->record.session_id()];
  return counts;
}

void Scheduler::EndSession(const std::string& session_id) {
  if (session_id.empty()) return;
  for (Job* job : OpenJobs()) {
    if (job->record.session_id() == session_id)
      Cancel(job, absl::CancelledError(absl::StrCat("the session of job ", job->id, " has ended")));
  }
}

std::vector<Scheduler::Job*> Scheduler::OpenJobs() const {
  std::vector<Job*> open;
  for (const auto* jobs : {&launches_.jobs(), &queue_.jobs()})
    for (const auto& [key, job] : *jobs) open.push_back(job);
  return open;
}

void Scheduler::Cancel(Job* job, const absl::Status& reason) {
  if (job->ended || !job->end_as.ok()) return;
  // A job that drains because of its own error keeps that error, because it is more specific.
  if (!job->first_error.ok() && job->drain == Job::Drain::kEnd) return;
  job->end_as = WithReason(reason, kReasonCancelled);
  if (job->launch == 0) return End(job, v1::Job::STATE_CANCELLED, job->end_as);
  launches_.Cancel(job, job->end_as);
  // The job will not compute anything, but the nodes first end the earlier launches on its plan.
  if (launches_.BeforeOnPlan(*job) != nullptr) Conclude(job, v1::Job::STATE_CANCELLED, job->end_as);
}

void Scheduler::OnDeadline(Job* job) {
  if (job->ended) return;
  if (job->launch == 0) {
    return End(job, v1::Job::STATE_FAILED,
               LateError(*job, absl::StrCat("it was queued, and waited for ",
                                            queue_.WaitOf(*job).reason())));
  }
  if (const absl::Duration left = job->deadline.Left(clock_->Nanos()) + kDeadlineGrace;
      left > absl::ZeroDuration()) {
    job->deadline_timer = loop_->PostAfter(left, [this, job] { OnDeadline(job); });
    return;
  }
  std::vector<std::string> names;
  for (int node : job->reporting) names.push_back(members_->node_name(node));
  const absl::Status late = LateError(
      *job, job->behind == nullptr
                ? absl::StrCat("it was running on ", absl::StrJoin(names, ", "))
                : absl::StrFormat("it was launched ahead behind job %d, which had not ended",
                                  job->behind->id));
  launches_.Cancel(job, absl::DeadlineExceededError("stopped at the job's timeout"));
  if (launches_.BeforeOnPlan(*job) != nullptr) return Conclude(job, v1::Job::STATE_FAILED, late);
  ConcludeLate(job, late);
}

void Scheduler::ConcludeLate(Job* job, const absl::Status& late) {
  progress_.Ask(*job, /*step_times=*/true, ProgressQueries::Asker::kSequencer,
                [this, id = job->id, late](const ProgressQueries::Answer& answer) {
                  const absl::StatusOr<Job*> found = history_.Find(id);
                  if (!found.ok() || (*found)->ended) return;
                  Job* const job = *found;
                  for (const auto& [rank, report] : answer.ranks)
                    job->reports.emplace(rank, report);
                  if (!job->end_as.ok())
                    return Conclude(job, v1::Job::STATE_CANCELLED, job->end_as);
                  if (!job->first_error.ok())
                    return Conclude(job, v1::Job::STATE_FAILED, ErrorOf(*job, job->first_error));
                  const std::string cause = CauseOf(job->reports);
                  Conclude(job, v1::Job::STATE_FAILED,
                           cause.empty() ? late : LateError(*job, cause));
                });
}

std::string Scheduler::CauseOf(const RankReports& reports) const {
  RankReportsView ranks;
  for (const auto& [rank, report] : reports) ranks[rank] = &report;
  if (!IsHeldUp(ranks)) return "";
  return CauseText(FollowWaits(ranks), [this](int node) { return members_->node_name(node); });
}

absl::Status Scheduler::ErrorOf(const Job& job, const absl::Status& reported) const {
  if (!absl::IsDeadlineExceeded(reported)) return reported;
  const std::string cause = CauseOf(job.reports);
  return LateError(job, absl::StrCat(cause, cause.empty() ? "" : "; ", reported.message()));
}

void Scheduler::End(Job* job, v1::Job::State state, const absl::Status& error) {
  queue_.ReleaseAll(job, error.ok() && !job->spec.options.transfers_only);
  Conclude(job, state, error);
}

void Scheduler::Conclude(Job* job, v1::Job::State state, const absl::Status& error) {
  loop_->Cancel(job->deadline_timer);
  history_.End(job, state, error);
  RequestPump();
}

void Scheduler::Withdraw(Job* job, const absl::Status& error) {
  loop_->Cancel(job->deadline_timer);
  queue_.ReleaseAll(job, false);
  DeleteMade(job->spec);
  history_.Withdraw(job, error);
}

void Scheduler::OnGenerationEnded(const std::vector<int>&, const absl::Status& reason) {
  plans_.Forget();
  const std::vector<Job*> open = OpenJobs();
  launches_.Clear();
  // Cleared after the launches, because an incomplete answer must not decide about a launch.
  progress_.Clear();
  for (Job* job : open) {
    job->plan = nullptr;
    if (job->ended) {
      history_.KeepReports(job);
      queue_.ReleaseAll(job, false);
    } else {
      End(job, v1::Job::STATE_FAILED, reason);
    }
  }
}

void Scheduler::OnReport(int node, const v1::Report& report) {
  if (report.has_launch_done()) launches_.OnDone(node, report.launch_done());
  if (report.has_launch_progress()) progress_.OnAnswer(node, report.launch_progress());
  if (report.has_plan_prepared()) plans_.OnPrepared(node, report.plan_prepared());
}

}  // namespace agmm
