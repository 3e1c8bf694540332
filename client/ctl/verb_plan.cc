// agmmctl plan: plans a product or a collective and verifies the plan, without a daemon.

#include <CLI/App.hpp>
#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/json.h"
#include "client/ctl/machine_flags.h"
#include "client/ctl/plan_explanation.h"
#include "client/ctl/plan_json.h"
#include "client/ctl/plan_limits.h"
#include "client/ctl/problem_flags.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/verbs.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/predict/choose.h"
#include "kernels/predict/predict.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/demand.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/split.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

// In lines of at most 80 columns, as those of flags.
constexpr char kAlgorithmsHelp[] =
    "Algorithms:\n"
    "  auto                The one with the shortest predicted time, or a tuned plan\n"
    "  serial              Gathers all of an operand before it multiplies: no overlap\n"
    "  ring                Each shard goes from rank to rank, once around\n"
    "  bidirectional_ring  Each shard goes both ways, halfway around\n"
    "  split_ring          Half of each shard goes around one way, half the other\n"
    "  direct              Each shard goes straight to all ranks that need it\n"
    "  hierarchical        Each shard goes to every node once, and there to each rank\n"
    "  hierarchical_peer   The same, but ranks read shards on their node in place\n"
    "  torus               Each shard goes along one axis of the mesh after another\n"
    "  peer                Ranks read all shards in place; on one node only\n"
    "A rank is a device, and a node is a daemon with its devices. Terms of a sum take\n"
    "the same ways back, to the rank that adds them up.";

struct PlanFlags {
  ProblemFlags of;
  MachineFlags on;
  bool full = false, explain = false;
};

std::string RankTable(const Topology& topology, const Schedule& schedule,
                      const std::vector<Traffic>& by_rank) {
  int64_t most = 0;
  for (const Traffic& traffic : by_rank)
    most = std::max({most, traffic.own_node(), traffic.other_nodes});
  const bool large = most >= 1 << 20;
  auto amount = [&](int64_t bytes) {
    return large ? absl::StrFormat("%.2f", bytes / 1048576.0) : absl::StrCat(bytes);
  };
  const std::string unit = large ? "MiB" : "bytes";
  Table table({Number("rank"), Number("node"), Number("steps"), Number("sent to own node", unit),
               Number("to other nodes", unit)});
  for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
    table.AddRow({absl::StrCat(rank), absl::StrCat(topology.node_of_rank[rank]),
                  absl::StrCat(schedule.ranks[rank].size()), amount(by_rank[rank].own_node()),
                  amount(by_rank[rank].other_nodes)});
  }
  return table.ToString();
}

// "960: 448 transfer, 512 multiply".
std::string CountText(const Schedule& schedule, bool carried) {
  int total = 0, carriers = 0;
  std::map<size_t, std::pair<const char*, int>> counts;  // name and number, by kind
  for (const std::vector<Step>& steps : schedule.ranks) {
    for (const Step& step : steps) {
      const auto* transfer = std::get_if<Transfer>(&step.op);
      auto& [name, count] = counts[step.op.index()];
      name = OpName(step.op);
      ++count;
      carriers += transfer != nullptr && transfer->carrier >= 0;
      ++total;
    }
  }
  std::vector<std::string> parts;
  for (const auto& [kind, counted] : counts)
    parts.push_back(absl::StrFormat("%d %s", counted.second, counted.first));
  if (carried) parts[0] += absl::StrFormat(" (%d of them carried)", carriers);
  return absl::StrFormat("%d: %s", total, absl::StrJoin(parts, ", "));
}

// "1.31 GiB by memory, 192 MiB by network an epoch; minimum between nodes: 64 MiB": the bytes
// between ranks, and the fewest between nodes of any plan of the split.
std::string MovedText(const std::vector<Traffic>& by_rank, int64_t least) {
  Traffic sum;
  for (const Traffic& traffic : by_rank) sum += traffic;
  std::vector<std::string> parts;
  if (sum.own_node() > 0) parts.push_back(FormatBytes(sum.own_node()) + " by memory");
  if (sum.other_nodes > 0) parts.push_back(FormatBytes(sum.other_nodes) + " by network");
  if (parts.empty()) return "nothing";
  const std::string bound =
      sum.other_nodes > 0 ? absl::StrCat("; minimum between nodes: ", FormatBytes(least)) : "";
  return absl::StrCat(absl::StrJoin(parts, ", "), " an epoch", bound);
}

absl::StatusOr<Bounded> BoundedOf(const Problem& problem, const Topology& topology, Recipe recipe,
                                  const Schedule& schedule) {
  Bounded bounded;
  recipe.workspace_shards = 0;
  AGMM_ASSIGN_OR_RETURN(const Schedule whole, PlanWith(problem, topology, recipe));
  bounded.unbounded_bytes = whole.workspace_bytes;
  for (const std::vector<Step>& steps : schedule.ranks) {
    std::map<int64_t, int64_t> sums;  // by offset
    for (const Step& step : steps) {
      const auto* multiply = std::get_if<Multiply>(&step.op);
      if (multiply == nullptr || !multiply->acc) continue;
      int64_t& span = sums[multiply->acc->offset_bytes];
      span = std::max(span, SpanBytes(multiply->c, *multiply->acc));
    }
    int64_t bytes = 0;
    for (const auto& [offset, span] : sums) bytes += span;
    bounded.sum_bytes = std::max(bounded.sum_bytes, bytes);
  }
  return bounded;
}

absl::StatusOr<Schedule> PlanAndVerify(const Problem& problem, const Topology& topology,
                                       const Recipe& recipe, const PlanCost& cost, bool json) {
  // With JSON a program reads stderr, so only an error may be written there.
  const absl::Duration once_after = json ? absl::InfiniteDuration() : absl::Seconds(5);
  const char* phase = "planning";
  TerminalLine line(
      [&](absl::Duration elapsed) -> std::string {
        if (elapsed < absl::Seconds(1)) return "";
        return absl::StrFormat("%s about %d steps  %s", phase, cost.steps,
                               absl::FormatDuration(absl::Floor(elapsed, absl::Seconds(1))));
      },
      once_after);
  absl::StatusOr<Schedule> schedule = PlanWithinMemory(problem, topology, recipe);
  if (!schedule.ok()) return schedule;
  line.Update([&] { phase = "verifying"; });
  const absl::Status verified = Verify(problem, topology, *schedule);
  if (verified.ok()) return schedule;
  return absl::InternalError(absl::StrCat("the planner made a plan that does not verify (",
                                          verified.message(),
                                          "); this is a bug, please report it"));
}

// Chooses the open options by prediction. If no plan is within the limits of daemons, they get
// defaults.
absl::StatusOr<Choice> ChooseOrDefault(const Problem& problem, const Platform& platform,
                                       const PlanOptions& asked) {
  absl::StatusOr<Choice> choice = Choose(problem, platform, asked);
  if (choice.ok() || !absl::IsResourceExhausted(choice.status())) return choice;
  AGMM_ASSIGN_OR_RETURN(ResolvedOptions resolved,
                        ResolveOptions(problem, platform.topology, asked));
  Choice defaults;
  defaults.recipe = std::move(resolved.recipe);
  defaults.why = std::move(resolved.why);
  return defaults;
}

absl::Status RunPlan(const PlanFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const Problem problem, ProblemOf(flags.of));
  AGMM_ASSIGN_OR_RETURN(Machine machine, MachineOf(flags.on));
  // Without a machine, all ranks are on one node.
  if (!IsNamed(flags.on)) machine.devices_per_node = problem.mesh.size();
  AGMM_ASSIGN_OR_RETURN(const Platform platform,
                        PlatformOf(flags.on, flags.of, problem.mesh, std::move(machine)));
  const Topology& topology = platform.topology;
  AGMM_ASSIGN_OR_RETURN(const Choice choice, ChooseOrDefault(problem, platform, flags.of.options));
  const Recipe& recipe = choice.recipe;
  const PlanOptions resolved = OptionsOf(problem, recipe);
  PlanCost cost = CostOf(problem, topology, recipe);
  if (options.json || flags.full) cost.bytes *= 2;  // the text of each step
  AGMM_RETURN_IF_ERROR(CheckMemory(cost));
  const std::string refused = RefusedByDaemons(cost);
  // Printed before the work. With JSON a field of the plan has this text instead, because stderr is
  // for errors only.
  if (!refused.empty() && !options.json)
    std::cerr << "note: daemons would refuse this plan: " << refused << "\n";
  AGMM_ASSIGN_OR_RETURN(const Schedule schedule,
                        PlanAndVerify(problem, topology, recipe, cost, options.json));
  const std::string too_large = TooLargeFor(platform.machine, problem, schedule.workspace_bytes);
  if (refused.empty() && !too_large.empty() && !options.json)
    std::cerr << "note: daemons would refuse this plan: " << too_large << "\n";
  PlanReport planned = {
      problem, topology, resolved, choice.why, refused.empty() ? too_large : refused, schedule};
  planned.traffic = TrafficOf(topology, schedule);
  planned.least_between_nodes = LeastBetweenNodes(problem, topology, recipe.split, recipe.partials);
  std::string workspace = FormatBytes(schedule.workspace_bytes) + " on every rank";
  if (recipe.workspace_shards > 0) {
    AGMM_ASSIGN_OR_RETURN(planned.bounded, BoundedOf(problem, topology, recipe, schedule));
    if (HasProduct(problem)) {
      absl::StrAppend(&workspace, ", ", FormatBytes(planned.bounded->sum_bytes),
                      " of it for sums along ", DimensionOf(problem, Dim::kK).name);
    }
    absl::StrAppend(&workspace, "; ", FormatBytes(planned.bounded->unbounded_bytes),
                    " with room for all shards");
  }
  Fields fields;
  fields.Add(HasProduct(problem) ? "split" : "collective",
             HasProduct(problem) ? resolved.split : CollectiveName(problem));
  fields.Add("algorithm", PlanText(ToProto(resolved), planned.why, schedule.algorithm));
  if (choice.time_ns > 0) {
    fields.Add("predicted", absl::StrCat(FormatMicros(static_cast<double>(choice.time_ns) * 1e-3),
                                         " on ", platform.machine.name));
  }
  fields.Add("plan", HashHex(PlanHash(problem, schedule)) + ", verified");
  fields.Add("workspace", workspace);
  fields.Add(
      "steps",
      absl::StrCat(CountText(schedule, recipe.carried),
                   refused.empty() ? "" : absl::StrCat("; daemons plan at most ", kMaxPlanSteps)));
  fields.Add("moved", MovedText(planned.traffic, planned.least_between_nodes));
  std::string text = absl::StrCat(Wrap(ToString(problem)), "\n", fields.ToString(), "\n",
                                  RankTable(topology, schedule, planned.traffic));
  if (flags.full) absl::StrAppend(&text, "\n", Print(problem, schedule));
  Json json = options.json ? PlanJson(planned) : Json();
  if (flags.explain) {
    AGMM_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(problem, platform, schedule));
    const std::string limit = PredictionOf(simulation, {}).limit;
    const std::vector<SplitRow> rows =
        SplitRowsOf(problem, platform, flags.of.options, recipe.split);
    absl::StrAppend(
        &text, "\n",
        ExplanationText(problem, rows, recipe.split, flags.of.options.split.empty(), limit));
    if (options.json) json["explanation"] = ExplanationJson(problem, rows, recipe.split, limit);
  }
  PrintResult(options, json, text);
  return absl::OkStatus();
}

}  // namespace

void AddPlan(CLI::App* app, Command* command) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* verb = app->add_subcommand("plan", "Plan a job and verify the plan, without a daemon");
  AddProblemFlags(verb, "those of --preset or --machine, else all ranks", &flags->of);
  AddMachineFlags(verb, &flags->on);
  verb->add_flag("--full", flags->full, "Also print the steps of every rank");
  verb->add_flag(
      "--explain", flags->explain,
      "Also print every split of the product: the predicted time, the bytes that move, the flops "
      "of the busiest rank, and the most memory that a rank needs beside its shards");
  verb->footer(absl::StrCat(kAlgorithmsHelp, "\n\n", app->get_footer()));
  OnVerb(verb, command, flags, RunPlan);
}

}  // namespace agmm
