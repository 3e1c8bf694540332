#include "client/ctl/simulation_text.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/chain_text.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "client/ctl/time_unit.h"
#include "client/ctl/timeline.h"
#include "kernels/base/hash.h"
#include "kernels/base/units.h"
#include "kernels/predict/choose.h"
#include "kernels/schedule/text.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

// The most resources in the table of their use.
constexpr size_t kMostResources = 12;
// The most columns of a timeline, also on a wider terminal.
constexpr size_t kTimelineColumns = 80;

std::string Time(int64_t ns) { return FormatMicros(static_cast<double>(ns) / 1000); }

std::string PercentOf(int64_t part_ns, int64_t whole_ns) {
  return absl::StrFormat("%.0f", 100 * static_cast<double>(part_ns) /
                                     static_cast<double>(std::max<int64_t>(1, whole_ns)));
}

// "8 ranks on 2 nodes", "16 ranks on a torus: a=4 (wraps), b=4".
std::string LayoutText(const Platform& platform) {
  const Topology& topology = platform.topology;
  const std::string ranks = Counted(topology.rank_count(), "rank");
  if (!platform.torus.axes.empty()) {
    return absl::StrCat(
        ranks, " on a torus: ",
        absl::StrJoin(platform.torus.axes, ", ", [](std::string* out, const TorusAxis& axis) {
          absl::StrAppend(out, axis.name, "=", axis.size, axis.wraps ? " (wraps)" : "");
        }));
  }
  const std::set<int> nodes(topology.node_of_rank.begin(), topology.node_of_rank.end());
  return absl::StrCat(ranks, " on ", Counted(static_cast<int64_t>(nodes.size()), "node"));
}

std::string NameAndVersion(const Machine& machine) {
  return machine.version == 0 ? machine.name
                              : absl::StrFormat("%s, version %d", machine.name, machine.version);
}

Fields PlatformFields(const Platform& platform) {
  Fields fields;
  fields.Add("machine", NameAndVersion(platform.machine));
  fields.Add("layout", LayoutText(platform));
  return fields;
}

void AddSplit(const Problem& problem, const SimulatedPlan& plan, Fields* fields) {
  if (HasProduct(problem))
    fields->Add("split", plan.options.split);
  else
    fields->Add("collective", CollectiveName(problem));
}

void AddReferences(const References& references, Fields* fields) {
  if (!references.complete) {
    fields->Add("bound", absl::StrFormat("%s, T_gemm alone", Time(references.gemm_ns)));
    fields->Add("unfused",
                absl::StrFormat("not simulated, because serial has more than %d steps; neither are "
                                "R, E and speedup known",
                                kMaxPlanSteps));
    return;
  }
  fields->Add("bound", absl::StrFormat("%s, the larger of T_gemm %s and T_comm %s",
                                       Time(std::max(references.gemm_ns, references.comm_ns)),
                                       Time(references.gemm_ns), Time(references.comm_ns)));
  fields->Add("unfused", absl::StrCat(Time(references.unfused_ns), ", T of serial"));
}

std::string TimelineOf(const Problem& problem, const SimulatedPlan& plan) {
  return TimelineText(problem, plan.schedule, plan.simulation,
                      std::min(kTimelineColumns, TextColumns()));
}

// "4", or with pieces along K "4 x 2".
std::string ChunksText(const PlanOptions& options) {
  return options.k_chunks > 1 ? absl::StrCat(options.chunks, " x ", options.k_chunks)
                              : absl::StrCat(options.chunks);
}

// Facts that have a line of their own if they are the same for all plans, or else columns.
struct Shared {
  bool split = true, references = true;
};
Shared SharedBy(const std::vector<SimulatedPlan>& plans) {
  Shared shared;
  const References& first = plans.front().prediction.references;
  for (const SimulatedPlan& plan : plans) {
    const References& one = plan.prediction.references;
    shared.split &= plan.options.split == plans.front().options.split;
    shared.references &= one.gemm_ns == first.gemm_ns && one.comm_ns == first.comm_ns;
  }
  return shared;
}

std::string ComparisonTable(const std::vector<SimulatedPlan>& plans, const Shared& shared) {
  const TimeUnit unit = TimeUnitOf(plans[0].prediction.time_ns);
  std::vector<Column> columns = {Words("algorithm"), Number("chunks"), Number("T", unit.name)};
  if (!shared.references) {
    columns.push_back(Number("T_gemm", unit.name));
    columns.push_back(Number("T_comm", unit.name));
  }
  for (const char* name : {"R", "E", "speedup"}) columns.push_back(Number(name));
  columns.push_back(Number("busy", "%"));
  if (!shared.split) columns.push_back(LongWords("split"));
  columns.push_back(WrappedWords("busiest resource"));
  Table table(columns);
  for (const SimulatedPlan& plan : plans) {
    const Prediction& prediction = plan.prediction;
    std::vector<std::string> cells = {plan.algorithm, ChunksText(plan.options),
                                      InUnit(prediction.time_ns, unit)};
    if (!shared.references) {
      cells.push_back(InUnit(prediction.references.gemm_ns, unit));
      cells.push_back(InUnit(prediction.references.comm_ns, unit));
    }
    for (const double ratio : {prediction.overlap, prediction.efficiency, prediction.speedup})
      cells.push_back(absl::StrFormat("%.2f", ratio));
    const std::vector<ResourceUse>& resources = plan.simulation.resources;
    const ResourceUse busiest = resources.empty() ? ResourceUse{"none"} : resources.front();
    cells.push_back(PercentOf(busiest.busy_ns, prediction.time_ns));
    if (!shared.split) cells.push_back(plan.options.split);
    cells.push_back(busiest.name);
    table.AddRow(cells);
  }
  return table.ToString();
}

// A row of the table is the best of 12 candidates of one algorithm, and a job has 12 in all. A
// choice prefers fewer steps within 1 %.
std::string TakenText(const SimulatedPlans& all) {
  const SimulatedPlan &taken = *all.taken, &best = all.plans.front();
  const double ratio = static_cast<double>(taken.prediction.time_ns) /
                       static_cast<double>(std::max<int64_t>(best.prediction.time_ns, 1));
  if (all.taken_is_tuned || ratio <= 1.01) return taken.why;
  const int percent = static_cast<int>(std::lround(100 * (ratio - 1)));
  return absl::StrFormat(
      "%s; a job compares at most %d plans, and the fastest one here, %s with %s chunks, is %d %% "
      "faster",
      taken.why, kMostSimulated, best.algorithm, ChunksText(best.options), percent);
}

// Says why the chain and the timeline end before T; empty if the chain does not.
std::string RateText(const Simulation& simulation) {
  const int64_t end_ns = simulation.chain.empty() ? 0 : simulation.chain.back().end_ns;
  if (simulation.resources.empty() || end_ns >= simulation.time_ns) return "";
  const std::string text = absl::StrFormat(
      "T is %s longer than the longest chain of steps: it is how long the busiest resource, %s, "
      "works in an epoch",
      Time(simulation.time_ns - end_ns), simulation.resources.front().name);
  return absl::StrCat(Wrap(text), "\n");
}

std::string ResourceTable(const Simulation& simulation) {
  const TimeUnit unit = TimeUnitOf(simulation.time_ns);
  Table table({Number("busy", unit.name), Number("", "%"), WrappedWords("link or rank")});
  const std::vector<ResourceUse>& resources = simulation.resources;
  const size_t shown = std::min(resources.size(), kMostResources);
  for (size_t i = 0; i < shown; ++i) {
    table.AddRow({InUnit(resources[i].busy_ns, unit),
                  PercentOf(resources[i].busy_ns, simulation.time_ns), resources[i].name});
  }
  if (shown < resources.size())
    table.AddRow({"", "", absl::StrCat("... ", resources.size() - shown, " more")});
  return table.ToString();
}

}  // namespace

std::string ComparisonText(const Problem& problem, const Platform& platform,
                           const SimulatedPlans& all) {
  const SimulatedPlan& best = all.plans.front();
  const Shared shared = SharedBy(all.plans);
  Fields fields = PlatformFields(platform);
  if (shared.split) AddSplit(problem, best, &fields);
  if (shared.references) AddReferences(best.prediction.references, &fields);
  if (all.taken.has_value()) fields.Add("a job takes", TakenText(all));
  Fields left_out;
  for (const RefusedPlan& one : all.refused) left_out.Add(one.algorithm, one.why);
  std::string text = absl::StrCat(Wrap(ToString(problem)), "\n", fields.ToString(), "\n",
                                  ComparisonTable(all.plans, shared));
  if (!all.refused.empty()) absl::StrAppend(&text, "\nleft out:\n", left_out.ToString());
  absl::StrAppend(&text, "\n", best.algorithm, ":\n", TimelineOf(problem, best),
                  RateText(best.simulation));
  return text;
}

std::string SimulationText(const Problem& problem, const Platform& platform,
                           const SimulatedPlan& plan) {
  const Prediction& prediction = plan.prediction;
  Fields fields = PlatformFields(platform);
  AddSplit(problem, plan, &fields);
  fields.Add("algorithm", PlanText(ToProto(plan.options), plan.why, plan.algorithm));
  fields.Add("plan", absl::StrFormat("%s, %s", HashHex(plan.hash), Counted(plan.steps, "step")));
  fields.Add("T", Time(prediction.time_ns));
  AddReferences(prediction.references, &fields);
  if (prediction.references.complete) {
    fields.Add("R", absl::StrFormat("%.2f = bound / T", prediction.overlap));
    fields.Add("E", absl::StrFormat("%.2f = 1 - (T - T_gemm) / (unfused - T_gemm)",
                                    prediction.efficiency));
    fields.Add("speedup", absl::StrFormat("%.2f = unfused / T", prediction.speedup));
  }
  fields.Add("limit", prediction.limit);
  std::string text = absl::StrCat(Wrap(ToString(problem)), "\n", fields.ToString(), "\n",
                                  TimelineOf(problem, plan));
  if (!plan.simulation.resources.empty())
    absl::StrAppend(&text, "\n", ResourceTable(plan.simulation));
  if (!plan.simulation.chain.empty()) {
    absl::StrAppend(&text, "\nthe longest chain of steps:\n",
                    ChainText(ChainLines(problem, plan.schedule, plan.simulation.chain)),
                    RateText(plan.simulation));
  }
  return text;
}

}  // namespace agmm
