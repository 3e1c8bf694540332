#include "client/trace/job_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/connect/job_watch.h"
#include "client/trace/ran_plan.h"
#include "client/trace/trace_events.h"
#include "client/trace/world_view.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

struct TracedJob {
  const v1::Job* job;
  Problem problem;
  Schedule schedule;
  std::vector<const v1::RankReport*> reports;  // by rank of the mesh; null: without times
};

// "running" for STATE_RUNNING.
std::string LowerName(absl::string_view name) {
  return absl::AsciiStrToLower(name.substr(name.find('_') + 1));
}

Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

// Equal to agmmctl's own document of options, but without reflection, which the library's messages
// do not have.
Json JsonOf(const v1::PlanOptions& options) {
  const bool has_partials = options.partials() != v1::DTYPE_UNSPECIFIED;
  return {{"algorithm", OrNull(options.algorithm())},
          {"chunks", options.chunk_count()},
          {"k_chunks", options.k_chunk_count()},
          {"split", OrNull(options.split())},
          {"workspace_shards", options.workspace_shard_count()},
          {"carried", options.carried()},
          {"transfers_only", options.transfers_only()},
          {"partials", has_partials ? LowerName(v1::DType_Name(options.partials())) : "unknown"}};
}

bool HasTimes(const v1::RankReport* report) {
  return report != nullptr && !report->steps().empty() && report->epoch_start_unix_us() > 0;
}

// Returns the epoch that the step times of a rank belong to.
int EpochOf(const v1::Job& job, const v1::RankReport& report) {
  if (!report.has_progress()) return std::max(job.repeat_count(), 1);
  const v1::RankProgress& progress = report.progress();
  return progress.epoch() > 0 ? progress.epoch() : progress.epochs_done();
}

absl::Status NoTimesError(const v1::Job& job) {
  const char* why = "are no longer kept; run the job again and trace it right after";
  if (job.state() == v1::Job::STATE_QUEUED) {
    why = "do not exist yet, because it is queued; trace it once it runs";
  } else if (!HasEnded(job)) {
    why = "did not come from any node; see whether they answer, and their logs";
  } else if (job.state() != v1::Job::STATE_SUCCEEDED) {
    why = "are not available: the job never started, a node was lost, or newer jobs displaced them";
  }
  return absl::FailedPreconditionError(
      absl::StrFormat("the times of the steps of job %d %s", job.job_id(), why));
}

absl::StatusOr<TracedJob> StepsOf(const v1::Job& job, const v1::GetStatusResponse& status) {
  TracedJob traced{&job};
  AGMM_ASSIGN_OR_RETURN(traced.problem, ProblemOf(job));
  const Mesh& mesh = traced.problem.mesh;
  traced.reports = ReportsByRank(job, mesh);
  const Topology world = TopologyOfWorld(status);
  Topology topology;
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    const v1::RankReport*& report = traced.reports[rank];
    const size_t number = mesh.ranks[rank];
    if (report != nullptr) {
      topology.node_of_rank.push_back(report->node());
      topology.island_of_rank.push_back(report->island());
    } else if (number < world.node_of_rank.size()) {
      topology.node_of_rank.push_back(world.node_of_rank[number]);
      topology.island_of_rank.push_back(world.island_of_rank[number]);
    } else {
      return NoTimesError(job);
    }
    if (!HasTimes(report)) report = nullptr;
  }
  if (absl::c_count(traced.reports, nullptr) == mesh.size()) return NoTimesError(job);
  AGMM_ASSIGN_OR_RETURN(traced.schedule, PlanAgain(traced.problem, topology, job));
  for (size_t rank = 0; rank < traced.reports.size(); ++rank) {
    const int want = static_cast<int>(traced.schedule.ranks[rank].size());
    if (traced.reports[rank] != nullptr && traced.reports[rank]->steps_size() != want) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "job %d (%s) has times of %s on rank %d, but its plan has %s", job.job_id(),
          job.options().algorithm(), Counted(traced.reports[rank]->steps_size(), "step"),
          mesh.ranks[rank], Counted(want, "step")));
    }
  }
  return traced;
}

// Returns the times of the steps of a rank, with `zero_us` for the start of its epoch.
std::vector<TracedStep> TimesOf(const std::vector<Step>& steps, const v1::RankReport& report,
                                double zero_us) {
  double last_us = std::max(0.0, report.progress().for_us());
  for (const v1::StepTime& time : report.steps())
    last_us = std::max({last_us, time.start_us(), time.end_us()});
  std::set<int> at_work;
  for (const v1::LaneProgress& lane : report.progress().lanes())
    if (lane.waits().empty()) at_work.insert(lane.step().step());
  std::map<int, double> lanes;        // the end of the last step of each
  std::map<int, bool> lane_is_stuck;  // a step of it has not ended
  std::vector<TracedStep> traced(report.steps_size());
  for (int index = 0; index < report.steps_size(); ++index) {
    const Step& step = steps[index];
    const v1::StepTime& time = report.steps(index);
    if (lane_is_stuck[step.lane]) continue;
    TracedStep& times = traced[index];
    times.begun = time.start_us() > 0 || time.end_us() > 0;
    // The first part of a step may be over, and not the step.
    times.over = time.end_us() > 0 && at_work.count(index) == 0;
    lane_is_stuck[step.lane] = !times.over;
    const double begin_us = times.begun ? time.start_us() : last_us;
    const double end_us = times.over ? std::max(begin_us, time.end_us()) : last_us;
    double& ready_us = lanes[step.lane];
    times.ready_us = zero_us + ready_us;
    times.begin_us = zero_us + begin_us;
    times.end_us = zero_us + end_us;
    ready_us = end_us;
  }
  return traced;
}

}  // namespace

absl::StatusOr<Json> TraceOf(const std::vector<v1::Job>& jobs,
                             const v1::GetStatusResponse& status) {
  std::vector<TracedJob> all;
  std::vector<double> starts;
  Json list = Json::array();
  for (const v1::Job& job : jobs) {
    AGMM_ASSIGN_OR_RETURN(TracedJob traced, StepsOf(job, status));
    int epoch = 0;
    for (const v1::RankReport* report : traced.reports) {
      if (report == nullptr) continue;
      starts.push_back(report->epoch_start_unix_us());
      epoch = std::max(epoch, EpochOf(job, *report));
    }
    list.push_back({{"job_id", job.job_id()},
                    {"state", LowerName(v1::Job::State_Name(job.state()))},
                    {"spec", job.spec()},
                    {"algorithm", traced.schedule.algorithm},
                    {"options", JsonOf(job.options())},
                    {"plan_hash", job.plan_hash()},
                    {"epoch", epoch}});
    all.push_back(std::move(traced));
  }
  if (all.empty()) return absl::InvalidArgumentError("a trace needs at least one job");
  const double zero_unix_us = *absl::c_min_element(starts);
  std::vector<TracedPlan> plans;
  for (TracedJob& traced : all) {
    TracedPlan plan = {std::move(traced.problem), std::move(traced.schedule), {}, {}};
    plan.args["job"] = traced.job->job_id();
    for (size_t rank = 0; rank < traced.reports.size(); ++rank) {
      TracedRank& times = plan.ranks.emplace_back();
      const v1::RankReport* report = traced.reports[rank];
      if (report == nullptr) continue;
      times.node = report->node();
      times.epoch = EpochOf(*traced.job, *report);
      times.steps =
          TimesOf(plan.schedule.ranks[rank], *report, report->epoch_start_unix_us() - zero_unix_us);
    }
    plans.push_back(std::move(plan));
  }
  return Json{{"schema", "agmm.trace.v1"},
              {"displayTimeUnit", "ms"},
              {"otherData", {{"zero_unix_us", zero_unix_us}, {"jobs", std::move(list)}}},
              {"traceEvents", TraceEvents(plans, NamesOf(status))}};
}

}  // namespace agmm
