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

struct PlanFlags {
  ProblemFlags of;
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

// ---- --explain ----

bool ShareAnAxis(const std::vector<int>& x, const std::vector<int>& y) {
  return absl::c_any_of(x, [&](int axis) { return absl::c_linear_search(y, axis); });
}

// "; the sum of A is closed first" if an input has an open sum, else nothing.
std::string OpenInputs(const Problem& problem) {
  std::vector<std::string> names;
  for (const Operand input : problem.Inputs()) {
    if (OpenParts(problem.mesh, problem.tensors[input]) > 1)
      names.push_back(problem.tensors[input].name);
  }
  if (names.empty()) return "";
  return absl::StrCat("; the sum", names.size() > 1 ? "s" : "", " of ",
                      absl::StrJoin(names, " and "), names.size() > 1 ? " are" : " is",
                      " closed first");
}

// Source: the four cases of "Sharded Matrices and How to Multiply Them" (How to Scale Your Model).
std::string CaseOf(const Problem& problem) {
  const Product& product = TheProduct(problem);
  const Sharding &a = problem.tensors[product.a].sharding, &b = problem.tensors[product.b].sharding,
                 &c = problem.tensors[product.c].sharding;
  const std::string m = DimensionOf(problem, Dim::kM).name, n = DimensionOf(problem, Dim::kN).name,
                    k = DimensionOf(problem, Dim::kK).name;
  if (!a.cols.empty() && a.cols == b.rows)
    return absl::StrCat("case 3: ", k, " is sharded alike in both inputs");
  if (!a.cols.empty() || !b.rows.empty())
    return absl::StrCat("case 2: ", k, " is sharded in one input, or differently in both");
  if (ShareAnAxis(a.rows, b.cols))
    return absl::StrCat("case 4: ", m, " and ", n, " are sharded over the same axis");
  if (a.rows != c.rows || b.cols != c.cols)
    return absl::StrCat("case 1, but ", problem.tensors[product.c].name,
                        " is sharded otherwise than its inputs");
  return absl::StrCat("case 1: ", k, " is whole, and ", m, " and ", n,
                      " are sharded over different axes or none");
}

struct Candidate {
  Split split;
  SplitCost cost;
  bool sums = false, too_large = false, only_asked_for = false, keeps_closed = false;
};

Candidate CandidateOf(const Problem& problem, const Split& split) {
  const bool fits = CheckDemands(problem, split, DemandsOf(problem, split)).ok();
  return {split,
          CostOf(problem, split),
          WorkOf(problem, split).summed,
          !fits,
          KeepsK(problem) && !SummedAxes(problem, split).empty(),
          !CheckSplit(problem, split).ok()};
}

// Returns the cheapest first, and the ones that cannot be chosen last. Includes `taken`, which may
// name its axes in another order than the splits it is compared with.
std::vector<Candidate> Candidates(const Problem& problem, const Split& taken) {
  std::vector<Candidate> candidates;
  for (const Split& split : Splits(problem)) candidates.push_back(CandidateOf(problem, split));
  if (absl::c_none_of(candidates, [&](const Candidate& one) { return one.split == taken; }))
    candidates.push_back(CandidateOf(problem, taken));
  absl::c_stable_sort(candidates, [](const Candidate& x, const Candidate& y) {
    const auto key = [](const Candidate& one) {
      return std::tuple(one.keeps_closed, one.only_asked_for, one.too_large);
    };
    return key(x) != key(y) ? key(x) < key(y) : IsBetter(x.cost, y.cost);
  });
  return candidates;
}

// Returns the case of the product by its shardings, and every split with its costs; `taken` is
// marked. If `chosen`, the planner chose it, and the text gives the planner's rule. A collective
// has no splits to compare.
std::string ExplainText(const Problem& problem, const Split& taken, bool chosen) {
  if (!HasProduct(problem))
    return absl::StrCat(CollectiveName(problem), ": without a product there is nothing to split\n");
  Table table({Words("split"), Number("into busiest rank"), Number("into all"),
               Number("flops of a rank"), Number("bytes + flops/1000"), Number("beside its shards"),
               Words("")});
  for (const Candidate& one : Candidates(problem, taken)) {
    const std::string mark = one.split == taken   ? chosen ? "taken" : "asked for"
                             : one.keeps_closed   ? "does not leave the sum open"
                             : one.too_large      ? "too many blocks to be planned"
                             : one.only_asked_for ? "only if asked for: changes the order of sums"
                                                  : "";
    table.AddRow({SplitText(problem, one.split), FormatBytes(one.cost.busiest_bytes),
                  FormatBytes(one.cost.moved_bytes),
                  absl::StrFormat("%.3g", static_cast<double>(one.cost.flops)),
                  FormatBytes(one.cost.time_bytes()), FormatBytes(one.cost.memory_bytes), mark});
  }
  const std::string rule =
      chosen
          ? Wrap(absl::StrFormat(
                "the planner takes a split that moves nothing; otherwise the one with the lowest "
                "cost, which is the bytes into its busiest rank plus a byte for every %d flops of "
                "a rank; if equal, the one with the fewest flops, then one that leaves %s where it "
                "is made",
                kFlopsPerByte, problem.tensors[TheProduct(problem).c].name)) +
                "\n"
          : "";
  return absl::StrCat(CaseOf(problem), OpenInputs(problem), "\n", rule, "\n", table.ToString());
}

// {"case", "splits": [{"split", "taken", "busiest_bytes", "moved_bytes", "flops", "time_bytes",
//                      "memory_bytes", "needs_sum", "keeps_closed", "too_large"}]}
Json ExplainJson(const Problem& problem, const Split& taken) {
  if (!HasProduct(problem)) return {{"case", CollectiveName(problem)}, {"splits", Json::array()}};
  Json splits = Json::array();
  for (const Candidate& one : Candidates(problem, taken)) {
    splits.push_back({{"split", SplitText(problem, one.split)},
                      {"taken", one.split == taken},
                      {"busiest_bytes", one.cost.busiest_bytes},
                      {"moved_bytes", one.cost.moved_bytes},
                      {"flops", one.cost.flops},
                      {"time_bytes", one.cost.time_bytes()},
                      {"memory_bytes", one.cost.memory_bytes},
                      {"needs_sum", one.sums},
                      {"keeps_closed", one.keeps_closed},
                      {"too_large", one.too_large}});
  }
  return {{"case", CaseOf(problem)}, {"splits", splits}};
}

absl::Status RunPlan(const PlanFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const Problem problem, ProblemOf(flags.of));
  AGMM_ASSIGN_OR_RETURN(const Topology topology, TopologyOf(flags.of, problem.mesh));
  AGMM_ASSIGN_OR_RETURN(const ResolvedOptions choice,
                        ResolveOptions(problem, topology, flags.of.options));
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
  PlanReport planned = {problem, topology, resolved, choice.why, refused, schedule};
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
    absl::StrAppend(&text, "\n",
                    ExplainText(problem, recipe.split, flags.of.options.split.empty()));
    if (options.json) json["explanation"] = ExplainJson(problem, recipe.split);
  }
  PrintResult(options, json, text);
  return absl::OkStatus();
}

}  // namespace

void AddPlan(CLI::App* app, Command* command) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* verb = app->add_subcommand("plan", "Plan a job and verify the plan, without a daemon");
  AddProblemFlags(verb, "all ranks", &flags->of);
  verb->add_flag("--full", flags->full, "Also print the steps of every rank");
  verb->add_flag(
      "--explain", flags->explain,
      "Also print every split of the product: the bytes that move, the flops of the busiest rank, "
      "and the most memory that a rank needs beside its shards");
  OnVerb(verb, command, flags, RunPlan);
}

}  // namespace agmm
