#include "client/ctl/job_trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/connect/job_watch.h"
#include "client/ctl/matmul_figures.h"
#include "client/ctl/product.h"
#include "client/ctl/report.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

// A rank's lanes are threads of its node, with adjacent ids.
constexpr int kLanesOfRank = 100;

struct TracedJob {
  const v1::Job* job;
  Problem problem;
  Schedule schedule;
  std::vector<const v1::RankReport*> reports;  // by rank of the mesh
};

absl::StatusOr<TracedJob> StepsOf(const v1::Job& job) {
  if (job.state() != v1::Job::STATE_SUCCEEDED) {
    const char* const verb = !HasEnded(job)                            ? "is"
                             : job.state() == v1::Job::STATE_CANCELLED ? "was"
                                                                       : "has";
    return absl::FailedPreconditionError(
        absl::StrFormat("job %d %s %s; only jobs that succeeded have a trace", job.job_id(), verb,
                        EnumName(job.state())));
  }
  TracedJob traced{&job};
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, FromProto(job.mesh()));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(job.dtype()));
  AGMM_ASSIGN_OR_RETURN(traced.problem,
                        ParseProblem(job.spec(), mesh, {job.m(), job.n(), job.k()}, dtype));
  traced.reports = ReportsByRank(job, mesh);
  Topology topology;
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    const v1::RankReport* report = traced.reports[rank];
    if (report == nullptr || report->steps().empty() || report->epoch_start_unix_us() == 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "the step times of job %d on rank %d are no longer kept; run the job again and trace it "
          "right after",
          job.job_id(), mesh.ranks[rank]));
    }
    topology.node_of_rank.push_back(report->node());
    topology.island_of_rank.push_back(report->island());
  }
  AGMM_ASSIGN_OR_RETURN(traced.schedule, PlanAgain(traced.problem, topology, job));
  for (size_t rank = 0; rank < traced.reports.size(); ++rank) {
    const int want = static_cast<int>(traced.schedule.ranks[rank].size());
    if (traced.reports[rank]->steps_size() != want) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "job %d (%s) has times of %d steps on rank %d, but its plan has %d steps", job.job_id(),
          job.options().algorithm(), traced.reports[rank]->steps_size(), mesh.ranks[rank], want));
    }
  }
  return traced;
}

std::string Text(const Range& range) { return absl::StrCat(range.begin, ":", range.end); }

// "A", "A[0:512]" for rows, "B[:, 0:64]" for columns.
std::string Text(const Problem& problem, const Block& block) {
  const Tensor& tensor = problem.tensors[block.operand];
  const bool rows = block.rows == Range{0, tensor.rows}, cols = block.cols == Range{0, tensor.cols};
  if (rows && cols) return tensor.name;
  return absl::StrCat(tensor.name, "[", rows ? ":" : Text(block.rows),
                      cols ? "" : absl::StrCat(", ", Text(block.cols)), "]");
}

// "rows 0:512 of A", with columns unless the block has all of them.
std::string Part(const Problem& problem, const Block& block) {
  const Tensor& tensor = problem.tensors[block.operand];
  const bool cols = block.cols == Range{0, tensor.cols};
  return absl::StrCat("rows ", Text(block.rows),
                      cols ? "" : absl::StrCat(", columns ", Text(block.cols)), " of ",
                      tensor.name);
}

int64_t BytesOf(const Block& block, const Place& place) {
  return block.rows.size() * RowBytes(block, place);
}

// One step: "multiply A[0:512] x B", "send rows 0:512 of A to rank 3", with the world's ranks.
struct WorkTime {
  std::string name;
  const char *category, *unit;
  int64_t amount;  // in `unit`: "bytes" or "flop"
};

WorkTime WorkOf(const Problem& problem, const Transfer& op) {
  if (op.to.empty()) return {"join", "join", "bytes", 0};
  std::vector<std::string> others;
  for (const Place& place : op.to) {
    if (place.rank != op.from.rank)
      others.push_back(absl::StrCat("rank ", problem.mesh.ranks[place.rank]));
  }
  const std::string part = Part(problem, op.block);
  return {others.empty() ? absl::StrCat("copy ", part)
                         : absl::StrFormat("send %s to %s", part, absl::StrJoin(others, ", ")),
          "transfer", "bytes", BytesOf(op.block, op.from) * static_cast<int64_t>(op.to.size())};
}

WorkTime WorkOf(const Problem& problem, const Multiply& op) {
  return {absl::StrFormat("multiply %s x %s", Text(problem, op.a), Text(problem, op.b)), "multiply",
          "flop", 2 * op.a.rows.size() * op.b.cols.size() * op.a.cols.size()};
}

WorkTime WorkOf(const Problem& problem, const Reduce& op) {
  return {
      absl::StrFormat("add %s from rank %d", Part(problem, op.c), problem.mesh.ranks[op.from.rank]),
      "reduce", "bytes", BytesOf(op.c, op.from)};
}

std::string SlotText(const Problem& problem, const Slot& slot) {
  return absl::StrCat(problem.mesh.ranks[slot.rank], ":", slot.index);
}

Json StepEvent(const TracedJob& traced, Rank rank, int index, double zero_unix_us) {
  const Problem& problem = traced.problem;
  const v1::RankReport& report = *traced.reports[rank];
  const Step& step = traced.schedule.ranks[rank][index];
  const v1::StepTime& time = report.steps(index);
  const WorkTime work = std::visit([&](const auto& op) { return WorkOf(problem, op); }, step.op);
  Json waits = Json::array(), signals = Json::array();
  for (const Wait& wait : step.waits)
    waits.push_back(SlotText(problem, wait.slot) + (wait.lag > 0 ? "-1" : ""));
  for (const Slot& slot : step.signals) signals.push_back(SlotText(problem, slot));
  Json args = {{"job", traced.job->job_id()},
               {"rank", report.rank()},
               {"lane", step.lane},
               {"step", index},
               {"waits", waits},
               {"signals", signals},
               {work.unit, work.amount}};
  return {{"ph", "X"},
          {"name", work.name},
          {"cat", work.category},
          {"pid", report.node()},
          {"tid", report.rank() * kLanesOfRank + step.lane},
          {"ts", report.epoch_start_unix_us() - zero_unix_us + time.start_us()},
          {"dur", std::max(0.0, time.end_us() - time.start_us())},
          {"args", std::move(args)}};
}

Json NameEvent(const char* what, int pid, int tid, const std::string& name) {
  return {{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", name}}}};
}

}  // namespace

absl::StatusOr<Json> TraceOf(const std::vector<v1::Job>& jobs) {
  std::vector<TracedJob> all;
  std::vector<double> starts;
  Json list = Json::array();
  for (const v1::Job& job : jobs) {
    AGMM_ASSIGN_OR_RETURN(TracedJob traced, StepsOf(job));
    for (const v1::RankReport* report : traced.reports)
      starts.push_back(report->epoch_start_unix_us());
    list.push_back({{"job_id", job.job_id()},
                    {"spec", job.spec()},
                    {"algorithm", traced.schedule.algorithm},
                    {"options", ToJson(job.options())},
                    {"plan_hash", job.plan_hash()}});
    all.push_back(std::move(traced));
  }
  if (all.empty()) return absl::InvalidArgumentError("a trace needs at least one job");
  const double zero_unix_us = *std::min_element(starts.begin(), starts.end());
  std::set<int> nodes;
  std::map<int, std::pair<int, std::string>> threads;  // tid -> node, name
  Json steps = Json::array();
  for (const TracedJob& traced : all) {
    for (Rank rank = 0; rank < traced.problem.mesh.size(); ++rank) {
      const v1::RankReport& report = *traced.reports[rank];
      nodes.insert(report.node());
      for (int index = 0; index < report.steps_size(); ++index) {
        Json event = StepEvent(traced, rank, index, zero_unix_us);
        threads[event["tid"]] = {report.node(),
                                 absl::StrFormat("rank %d lane %d", report.rank(),
                                                 traced.schedule.ranks[rank][index].lane)};
        steps.push_back(std::move(event));
      }
    }
  }
  Json events = Json::array();
  for (int node : nodes)
    events.push_back(NameEvent("process_name", node, 0, absl::StrCat("node ", node)));
  for (const auto& [tid, thread] : threads)
    events.push_back(NameEvent("thread_name", thread.first, tid, thread.second));
  events.insert(events.end(), steps.begin(), steps.end());
  return Json{{"schema", "agmm.trace.v1"},
              {"displayTimeUnit", "ms"},
              {"otherData", {{"zero_unix_us", zero_unix_us}, {"jobs", std::move(list)}}},
              {"traceEvents", std::move(events)}};
}

}  // namespace agmm
