// agmmctl plan: what would run, without a daemon.
#include "kernels/schedule/plan.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/arguments.h"
#include "client/ctl/plan_json.h"
#include "client/ctl/table.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"

namespace agmm {
namespace {

struct PlanFlags {
  std::string spec = kDefaultSpec, shape, dtype = "bf16", mesh;
  int nodes = 1, devices_per_node = 0;
  PlanOptions options;
  bool full = false;
};

// Bytes that a rank's memory gives to other ranks in one epoch.
struct Traffic {
  int64_t own_node = 0, other_nodes = 0;
};

class TrafficCounter {
 public:
  explicit TrafficCounter(const Topology& topology)
      : topology_(topology), by_rank_(topology.rank_count()) {}

  void Count(Rank, const Transfer& op) {
    for (const Place& to : op.to) Move(op.block, op.from, to.rank);
  }
  void Count(Rank rank, const Multiply& op) {
    Move(op.a, op.a_place, rank);
    Move(op.b, op.b_place, rank);
  }
  void Count(Rank rank, const Reduce& op) { Move(op.c, op.from, rank); }

  const std::vector<Traffic>& by_rank() const { return by_rank_; }

 private:
  void Move(const Block& block, const Place& from, Rank to) {
    if (from.rank == to) return;
    Traffic& traffic = by_rank_[from.rank];
    (topology_.SameNode(from.rank, to) ? traffic.own_node : traffic.other_nodes) +=
        block.rows.size() * RowBytes(block, from);
  }

  const Topology& topology_;
  std::vector<Traffic> by_rank_;
};

std::vector<Traffic> TrafficOf(const Topology& topology, const Schedule& schedule) {
  TrafficCounter counter(topology);
  for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
    for (const Step& step : schedule.ranks[rank])
      std::visit([&](const auto& op) { counter.Count(rank, op); }, step.op);
  }
  return counter.by_rank();
}

std::string RankTable(const Topology& topology, const Schedule& schedule,
                      const std::vector<Traffic>& by_rank) {
  int64_t most = 0;
  for (const Traffic& traffic : by_rank)
    most = std::max({most, traffic.own_node, traffic.other_nodes});
  const bool large = most >= 1 << 20;
  auto amount = [&](int64_t bytes) {
    return large ? absl::StrFormat("%.2f", bytes / 1048576.0) : absl::StrCat(bytes);
  };
  const std::string unit = large ? "MiB" : "bytes";
  Table table(
      {{"rank"}, {"node"}, {"steps"}, {"sent to own node", unit}, {"to other nodes", unit}});
  for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
    table.AddRow({absl::StrCat(rank), absl::StrCat(topology.node_of_rank[rank]),
                  absl::StrCat(schedule.ranks[rank].size()), amount(by_rank[rank].own_node),
                  amount(by_rank[rank].other_nodes)});
  }
  return table.ToString();
}

// "960 steps: 448 transfers, 512 multiplies".
std::string CountLine(const Schedule& schedule) {
  int transfers = 0, multiplies = 0, reduces = 0, joins = 0;
  for (const std::vector<Step>& steps : schedule.ranks) {
    for (const Step& step : steps) {
      if (const auto* transfer = std::get_if<Transfer>(&step.op))
        ++(transfer->to.empty() ? joins : transfers);
      else
        ++(std::holds_alternative<Multiply>(step.op) ? multiplies : reduces);
    }
  }
  std::vector<std::string> parts;
  for (const auto& [count, what] :
       {std::pair(transfers, "transfer"), std::pair(multiplies, "multiply"),
        std::pair(reduces, "reduce"), std::pair(joins, "join")}) {
    if (count > 0) parts.push_back(absl::StrFormat("%d %s", count, what));
  }
  return absl::StrFormat("%d: %s", transfers + multiplies + reduces + joins,
                         absl::StrJoin(parts, ", "));
}

// "1.31 GiB by memory, 192 MiB by network": what one epoch moves between ranks.
std::string MovedLine(const std::vector<Traffic>& by_rank) {
  Traffic sum;
  for (const Traffic& traffic : by_rank) {
    sum.own_node += traffic.own_node;
    sum.other_nodes += traffic.other_nodes;
  }
  std::vector<std::string> parts;
  if (sum.own_node > 0) parts.push_back(FormatBytes(sum.own_node) + " by memory");
  if (sum.other_nodes > 0) parts.push_back(FormatBytes(sum.other_nodes) + " by network");
  return parts.empty() ? "nothing" : absl::StrCat(absl::StrJoin(parts, ", "), " an epoch");
}

// The steps of all ranks, or those of the first.
std::string StepsText(const Problem& problem, const Schedule& schedule, bool full) {
  const std::string text = Print(problem, schedule);
  const size_t second = text.find("\nrank 1\n");
  if (full || second == text.npos) return text;
  return absl::StrFormat("%s\n... and the steps of %d more rank%s: --full\n",
                         text.substr(0, second), schedule.ranks.size() - 1,
                         schedule.ranks.size() > 2 ? "s" : "");
}

// "ring, 8 chunks a shard (auto is ...)".
std::string AlgorithmLine(const Problem& problem, const Schedule& schedule,
                          const PlanOptions& asked, const PlanOptions& resolved) {
  if (schedule.algorithm != resolved.algorithm)
    return absl::StrCat(schedule.algorithm, " (nothing has to move)");
  const std::string why = ExplainChoice(problem, asked, resolved);
  return absl::StrCat(schedule.algorithm, ", ", resolved.chunks,
                      resolved.chunks == 1 ? " chunk" : " chunks", " a shard",
                      why.empty() ? "" : absl::StrCat(" (", why, ")"));
}

absl::Status RunPlan(const PlanFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, ParseMesh(flags.mesh));
  AGMM_ASSIGN_OR_RETURN(const Shape shape, ParseShape(flags.shape));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, ParseDType(flags.dtype));
  AGMM_ASSIGN_OR_RETURN(const Problem problem, ParseProblem(flags.spec, mesh, shape, dtype));
  AGMM_ASSIGN_OR_RETURN(const Topology topology,
                        UniformTopology(mesh.size(), flags.nodes, flags.devices_per_node));
  AGMM_ASSIGN_OR_RETURN(const PlanOptions resolved,
                        ResolveOptions(problem, topology, flags.options));
  AGMM_ASSIGN_OR_RETURN(const Schedule schedule, Plan(problem, topology, resolved));
  if (const absl::Status verified = Verify(problem, topology, schedule); !verified.ok()) {
    return absl::InternalError(absl::StrCat("the planner made a schedule that does not verify (",
                                            verified.message(),
                                            "); this is a bug, please report it"));
  }
  if (options.json) {
    std::cout << JsonLine(PlanJson(problem, topology, schedule));
    return absl::OkStatus();
  }
  const std::vector<Traffic> traffic = TrafficOf(topology, schedule);
  std::cout << ToString(problem) << "\n"
            << "algorithm  " << AlgorithmLine(problem, schedule, flags.options, resolved) << "\n"
            << "plan       " << HashHex(PlanHash(problem, schedule)) << ", verified\n"
            << "workspace  " << FormatBytes(schedule.workspace_bytes) << " on every rank\n"
            << "steps      " << CountLine(schedule) << "\n"
            << "moved      " << MovedLine(traffic) << "\n\n"
            << RankTable(topology, schedule, traffic) << "\n"
            << StepsText(problem, schedule, flags.full);
  return absl::OkStatus();
}

}  // namespace

void AddPlan(CLI::App& app, const Options& options, Action* action) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* verb =
      app.add_subcommand("plan", "Plan a product and prove the plan, without a daemon");
  verb->add_option("--shape", flags->shape, "Sizes, such as M=8192,N=4096,K=4096")->required();
  verb->add_option("--mesh", flags->mesh, "Axes over the ranks: x=8 or dp=2,tp=4")->required();
  verb->add_option("--spec", flags->spec, "The product and its shardings")->capture_default_str();
  verb->add_option("--dtype", flags->dtype, "f32, bf16 or f16")->capture_default_str();
  verb->add_option("--nodes", flags->nodes, "Nodes that the ranks lie on, in order")
      ->capture_default_str();
  verb->add_option("--devices-per-node", flags->devices_per_node,
                   "Ranks of a node (default: ranks / nodes)");
  AddPlanOptions(verb, &flags->options);
  verb->add_flag("--full", flags->full, "Print the steps of every rank, not only of the first");
  verb->callback([flags, &options, action] {
    *action = [flags, &options] { return RunPlan(*flags, options); };
  });
}

}  // namespace agmm
