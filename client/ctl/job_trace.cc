#include "client/ctl/trace.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/messages.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "proto/convert/problem.h"

namespace agmm {
namespace {

using Json = nlohmann::ordered_json;

// A rank's lanes are threads of its node, next to each other.
constexpr int kLanesOfRank = 100;

struct TracedJob {
  const v1::Job* job;
  Problem problem;
  Schedule schedule;
  std::vector<const v1::RankReport*> reports;  // by rank of the mesh
};

std::string PlanText(const v1::Job& job) {
  return absl::StrFormat("job %d (%s)", job.job_id(), job.options().algorithm());
}

// By rank of the mesh; an error where one has no times of its steps.
absl::StatusOr<std::vector<const v1::RankReport*>> ReportsOf(const v1::Job& job, const Mesh& mesh) {
  std::map<int, const v1::RankReport*> by_world_rank;
  for (const v1::RankReport& report : job.ranks()) by_world_rank[report.rank()] = &report;
  std::vector<const v1::RankReport*> reports;
  for (int world_rank : mesh.ranks) {
    const auto it = by_world_rank.find(world_rank);
    if (it == by_world_rank.end() || it->second->steps().empty() ||
        it->second->epoch_start_unix_us() == 0) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "the times of job %d's steps on rank %d are not kept any more; run it again and trace it "
          "then",
          job.job_id(), world_rank));
    }
    reports.push_back(it->second);
  }
  return reports;
}

absl::StatusOr<TracedJob> PlanAgain(const v1::Job& job) {
  if (job.state() != v1::Job::STATE_SUCCEEDED) {
    return absl::FailedPreconditionError(
        absl::StrFormat("job %d %s %s; only jobs that succeeded have a trace", job.job_id(),
                        HasEnded(job) ? "has" : "is", StateName(job.state())));
  }
  TracedJob traced{&job};
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, FromProto(job.mesh()));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(job.dtype()));
  AGMM_ASSIGN_OR_RETURN(traced.problem,
                        ParseProblem(job.spec(), mesh, {job.m(), job.n(), job.k()}, dtype));
  AGMM_ASSIGN_OR_RETURN(traced.reports, ReportsOf(job, mesh));
  Topology topology;
  for (const v1::RankReport* report : traced.reports)
    topology.node_of_rank.push_back(report->node());
  AGMM_ASSIGN_OR_RETURN(const PlanOptions options, FromProto(job.options()));
  AGMM_ASSIGN_OR_RETURN(traced.schedule, Plan(traced.problem, topology, options));
  const std::string hash = HashHex(PlanHash(traced.problem, traced.schedule));
  if (hash != job.plan_hash()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s ran plan %s and this agmmctl makes %s of it; use the agmmctl of the daemons' version",
        PlanText(job), job.plan_hash(), hash));
  }
  for (size_t rank = 0; rank < traced.reports.size(); ++rank) {
    const int want = static_cast<int>(traced.schedule.ranks[rank].size());
    if (traced.reports[rank]->steps_size() != want) {
      return absl::FailedPreconditionError(
          absl::StrFormat("%s has times of %d steps on rank %d and its plan has %d", PlanText(job),
                          traced.reports[rank]->steps_size(), mesh.ranks[rank], want));
    }
  }
  return traced;
}

bool IsAll(const Range& range, int64_t total) { return range.begin == 0 && range.end == total; }

std::string Text(const Range& range) { return absl::StrCat(range.begin, ":", range.end); }

// "A", "A[0:512]" for rows, "B[:, 0:64]" for columns.
std::string Text(const Problem& problem, const Block& block) {
  const Tensor& tensor = problem.tensors[block.operand];
  const bool rows = IsAll(block.rows, tensor.rows), cols = IsAll(block.cols, tensor.cols);
  if (rows && cols) return tensor.name;
  return absl::StrCat(tensor.name, "[", rows ? ":" : Text(block.rows),
                      cols ? "" : absl::StrCat(", ", Text(block.cols)), "]");
}

// "rows 0:512 of A", with the columns where they are not all.
std::string Part(const Problem& problem, const Block& block) {
  const Tensor& tensor = problem.tensors[block.operand];
  return absl::StrCat(
      "rows ", Text(block.rows),
      IsAll(block.cols, tensor.cols) ? "" : absl::StrCat(", columns ", Text(block.cols)), " of ",
      tensor.name);
}

std::string NameOf(const Problem& problem, const Transfer& op) {
  if (op.to.empty()) return "join";
  std::vector<std::string> others;
  for (const Place& place : op.to) {
    if (place.rank != op.from.rank)
      others.push_back(absl::StrCat("rank ", problem.mesh.ranks[place.rank]));
  }
  if (others.empty()) return absl::StrCat("copy ", Part(problem, op.block));
  return absl::StrFormat("send %s to %s", Part(problem, op.block), absl::StrJoin(others, ", "));
}

std::string NameOf(const Problem& problem, const Multiply& op) {
  return absl::StrFormat("multiply %s x %s", Text(problem, op.a), Text(problem, op.b));
}

std::string NameOf(const Problem& problem, const Reduce& op) {
  return absl::StrFormat("add %s from rank %d", Part(problem, op.c),
                         problem.mesh.ranks[op.from.rank]);
}

const char* CategoryOf(const Transfer& op) { return op.to.empty() ? "join" : "transfer"; }
const char* CategoryOf(const Multiply&) { return "multiply"; }
const char* CategoryOf(const Reduce&) { return "reduce"; }

int64_t BytesOf(const Block& block, const Place& place) {
  return block.rows.size() * RowBytes(block, place);
}

void AddAmount(const Transfer& op, Json* args) {
  (*args)["bytes"] = BytesOf(op.block, op.from) * static_cast<int64_t>(op.to.size());
}
void AddAmount(const Multiply& op, Json* args) {
  (*args)["flop"] = 2 * op.a.rows.size() * op.b.cols.size() * op.a.cols.size();
}
void AddAmount(const Reduce& op, Json* args) { (*args)["bytes"] = BytesOf(op.c, op.from); }

std::string SlotText(const Problem& problem, const Slot& slot) {
  return absl::StrCat(problem.mesh.ranks[slot.rank], ":", slot.index);
}

Json StepEvent(const TracedJob& traced, Rank rank, int index, double zero_unix_us) {
  const Problem& problem = traced.problem;
  const v1::RankReport& report = *traced.reports[rank];
  const Step& step = traced.schedule.ranks[rank][index];
  const v1::StepTime& time = report.steps(index);
  Json waits = Json::array(), signals = Json::array();
  for (const Wait& wait : step.waits)
    waits.push_back(SlotText(problem, wait.slot) + (wait.lag > 0 ? "-1" : ""));
  for (const Slot& slot : step.signals) signals.push_back(SlotText(problem, slot));
  Json args = {{"job", traced.job->job_id()},
               {"rank", report.rank()},
               {"lane", step.lane},
               {"step", index},
               {"waits", waits},
               {"signals", signals}};
  std::visit([&](const auto& op) { AddAmount(op, &args); }, step.op);
  const char* category = std::visit([](const auto& op) { return CategoryOf(op); }, step.op);
  return {{"ph", "X"},
          {"name", StepName(problem, step)},
          {"cat", category},
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

std::string StepName(const Problem& problem, const Step& step) {
  return std::visit([&](const auto& op) { return NameOf(problem, op); }, step.op);
}

absl::StatusOr<Json> TraceOf(const std::vector<v1::Job>& jobs) {
  std::vector<TracedJob> all;
  std::vector<double> starts;
  Json list = Json::array();
  for (const v1::Job& job : jobs) {
    AGMM_ASSIGN_OR_RETURN(TracedJob traced, PlanAgain(job));
    for (const v1::RankReport* report : traced.reports)
      starts.push_back(report->epoch_start_unix_us());
    list.push_back({{"job_id", job.job_id()},
                    {"spec", job.spec()},
                    {"algorithm", traced.schedule.algorithm},
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
