// agmmctl plan: plans a product and verifies the plan, without a daemon.
#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"

#include <CLI/App.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/arguments.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/verbs.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/base/usable_memory.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

struct PlanFlags {
  std::string spec = kDefaultSpec, shape, dtype = "bf16", mesh;
  int nodes = 1, devices_per_node = 0;
  PlanOptions options;
  bool full = false;
};

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
  Table table({Number("rank"), Number("node"), Number("steps"), Number("sent to own node", unit),
               Number("to other nodes", unit)});
  for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
    table.AddRow({absl::StrCat(rank), absl::StrCat(topology.node_of_rank[rank]),
                  absl::StrCat(schedule.ranks[rank].size()), amount(by_rank[rank].own_node),
                  amount(by_rank[rank].other_nodes)});
  }
  return table.ToString();
}

// "960: 448 transfer, 512 multiply". A join is a transfer to nowhere.
std::string CountText(const Schedule& schedule) {
  static constexpr const char* kNames[] = {"transfer", "multiply", "reduce", "join"};
  int total = 0, counts[4] = {};
  for (const std::vector<Step>& steps : schedule.ranks) {
    for (const Step& step : steps) {
      const auto* transfer = std::get_if<Transfer>(&step.op);
      ++counts[transfer != nullptr && transfer->to.empty() ? 3 : step.op.index()];
      ++total;
    }
  }
  std::vector<std::string> parts;
  for (int i = 0; i < 4; ++i)
    if (counts[i] > 0) parts.push_back(absl::StrFormat("%d %s", counts[i], kNames[i]));
  return absl::StrFormat("%d: %s", total, absl::StrJoin(parts, ", "));
}

// "1.31 GiB by memory, 192 MiB by network an epoch": the bytes between ranks.
std::string MovedText(const std::vector<Traffic>& by_rank) {
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

// A plan as JSON: the structs of kernels/schedule field by field, so that other programs can verify
// it.
// Format 1, where R is a rank of the mesh:
//   {"schema": "agmm.plan.v1", "format": 1, "algorithm": "ring", "hash": 16 hex digits,
//    "problem": {"spec": "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
//                "mesh": {"axes": [{"name", "size"}], "ranks": [world rank of each R]},
//                "m", "n", "k", "tensors": ["A", "B", "C"],
//                "operands": [{"name", "rows", "cols", "dtype", "row_dim", "col_dim",
//                              "row_axes": ["x"], "col_axes": []}]},
//    "topology": {"node_of_rank": [node of each R]},
//    "workspace_bytes",
//    "ranks": [{"rank": R, "node", "steps": [step]}]}
//   step:     {"lane", "op", ..., "waits": [{"slot": "R:index", "lag"}], "signals": ["R:index"]}
//   transfer: "block", "from": place, "to": [place], "carrier"
//   multiply: "a", "b", "c": blocks, "a_place", "b_place", "acc" (place or null), "out": places,
//             "accumulate", "finish"
//   reduce:   "c": block, "from", "into", "out": places, "finish"
//   block:    {"operand": "A", "rows": [begin, end], "cols": [begin, end]}
//   place:    {"rank": R, "buffer": "A" or "workspace", "offset", "pitch": bytes, "dtype"}
class PlanJson {
 public:
  explicit PlanJson(const Problem& problem) : problem_(problem) {}

  Json Of(const Topology& topology, const Schedule& schedule) const {
    Json ranks = Json::array();
    for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
      ranks.push_back({{"rank", rank},
                       {"node", topology.node_of_rank[rank]},
                       {"steps", Of(schedule.ranks[rank])}});
    }
    return {{"schema", "agmm.plan.v1"},
            {"format", 1},
            {"algorithm", schedule.algorithm},
            {"hash", HashHex(PlanHash(problem_, schedule))},
            {"problem", OfProblem()},
            {"topology", {{"node_of_rank", topology.node_of_rank}}},
            {"workspace_bytes", schedule.workspace_bytes},
            {"ranks", ranks}};
  }

 private:
  template <typename T>
  Json Of(const std::vector<T>& items) const {
    Json list = Json::array();
    for (const T& item : items) list.push_back(Of(item));
    return list;
  }

  Json OfProblem() const {
    Json names = Json::array();
    for (const Tensor& tensor : problem_.tensors) names.push_back(tensor.name);
    return {{"spec", SpecText(problem_)},
            {"mesh", {{"axes", Of(problem_.mesh.axes)}, {"ranks", problem_.mesh.ranks}}},
            {"m", problem_.m()},
            {"n", problem_.n()},
            {"k", problem_.k()},
            {"tensors", names},
            {"operands", Of(problem_.tensors)}};
  }
  Json Of(const Axis& axis) const { return {{"name", axis.name}, {"size", axis.size}}; }
  Json Of(const Tensor& tensor) const {
    return {{"name", tensor.name},
            {"rows", tensor.rows},
            {"cols", tensor.cols},
            {"dtype", Of(tensor.dtype)},
            {"row_dim", tensor.row_dim},
            {"col_dim", tensor.col_dim},
            {"row_axes", AxisNames(tensor.sharding.rows)},
            {"col_axes", AxisNames(tensor.sharding.cols)}};
  }
  Json AxisNames(const std::vector<int>& axes) const {
    Json names = Json::array();
    for (int axis : axes) names.push_back(problem_.mesh.axes[axis].name);
    return names;
  }
  Json Of(DType dtype) const { return std::string(Name(dtype)); }

  Json Of(const Step& step) const {
    Json json = {{"lane", step.lane}};
    json.update(std::visit([this](const auto& op) { return Of(op); }, step.op));
    json.update({{"waits", Of(step.waits)}, {"signals", Of(step.signals)}});
    return json;
  }
  Json Of(const Transfer& op) const {
    return {{"op", "transfer"},
            {"block", Of(op.block)},
            {"from", Of(op.from)},
            {"to", Of(op.to)},
            {"carrier", op.carrier}};
  }
  Json Of(const Multiply& op) const {
    return {{"op", "multiply"},
            {"a", Of(op.a)},
            {"b", Of(op.b)},
            {"c", Of(op.c)},
            {"a_place", Of(op.a_place)},
            {"b_place", Of(op.b_place)},
            {"acc", op.acc ? Of(*op.acc) : Json(nullptr)},
            {"out", Of(op.out)},
            {"accumulate", op.accumulate},
            {"finish", op.finish}};
  }
  Json Of(const Reduce& op) const {
    return {{"op", "reduce"},      {"c", Of(op.c)},     {"from", Of(op.from)},
            {"into", Of(op.into)}, {"out", Of(op.out)}, {"finish", op.finish}};
  }
  Json Of(const Block& block) const {
    return {{"operand", OperandText(problem_, block.operand)},
            {"rows", {block.rows.begin, block.rows.end}},
            {"cols", {block.cols.begin, block.cols.end}}};
  }
  Json Of(const Place& place) const {
    return {{"rank", place.rank},
            {"buffer", OperandText(problem_, place.buffer)},
            {"offset", place.offset_bytes},
            {"pitch", place.pitch_bytes},
            {"dtype", Of(place.dtype)}};
  }
  Json Of(const Wait& wait) const { return {{"slot", Of(wait.slot)}, {"lag", wait.lag}}; }
  Json Of(const Slot& slot) const { return absl::StrCat(slot.rank, ":", slot.index); }

  const Problem& problem_;
};

// Refuses plans that take more memory than there is: the system may end other programs for it.
absl::Status CheckMemory(const PlanCost& cost) {
  const int64_t usable = UsableMemory();
  if (cost.bytes <= usable) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the plan has about %d steps and takes about %s to plan and to prove; this process may use "
      "%s; use fewer chunks (--chunks) or fewer ranks (--mesh)",
      cost.steps, FormatBytes(cost.bytes), FormatBytes(usable)));
}

absl::StatusOr<Schedule> PlanAndVerify(const Problem& problem, const Topology& topology,
                                       const PlanOptions& options, const PlanCost& cost) {
  const char* phase = "planning";
  TerminalLine line([&](absl::Duration elapsed) -> std::string {
    if (elapsed < absl::Seconds(1)) return "";
    return absl::StrFormat("%s about %d steps  %s", phase, cost.steps,
                           absl::FormatDuration(absl::Floor(elapsed, absl::Seconds(1))));
  });
  absl::StatusOr<Schedule> schedule = Plan(problem, topology, options);
  if (!schedule.ok()) return schedule;
  line.Update([&] { phase = "verifying"; });
  const absl::Status verified = Verify(problem, topology, *schedule);
  if (verified.ok()) return schedule;
  return absl::InternalError(absl::StrCat("the planner made a plan that does not verify (",
                                          verified.message(),
                                          "); this is a bug, please report it"));
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
  PlanCost cost = CostOf(problem, resolved);
  if (options.json || flags.full) cost.bytes *= 2;  // the text of each step
  AGMM_RETURN_IF_ERROR(CheckMemory(cost));
  AGMM_ASSIGN_OR_RETURN(const Schedule schedule, PlanAndVerify(problem, topology, resolved, cost));
  const std::vector<Traffic> traffic = TrafficOf(topology, schedule);
  const std::string algorithm = PlanText(
      ToProto(resolved), ExplainChoice(problem, flags.options, resolved), schedule.algorithm);
  std::string text = absl::StrCat(
      ToString(problem), "\nalgorithm  ", algorithm, "\nplan       ",
      HashHex(PlanHash(problem, schedule)), ", verified\nworkspace  ",
      FormatBytes(schedule.workspace_bytes), " on every rank\nsteps      ", CountText(schedule),
      "\nmoved      ", MovedText(traffic), "\n\n", RankTable(topology, schedule, traffic));
  if (flags.full) absl::StrAppend(&text, "\n", Print(problem, schedule));
  PrintResult(options, options.json ? PlanJson(problem).Of(topology, schedule) : Json(), text);
  return absl::OkStatus();
}

}  // namespace

void AddPlan(CLI::App* app, Command* command) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* verb =
      app->add_subcommand("plan", "Plan a product and verify the plan, without a daemon");
  verb->add_option("--shape", flags->shape, "Sizes of the product, such as M=8192,N=4096,K=4096")
      ->required();
  verb->add_option("--mesh", flags->mesh, "Axes and their sizes, such as x=8 or dp=2,tp=4")
      ->required();
  verb->add_option("--spec", flags->spec, "The product and its shardings")->capture_default_str();
  verb->add_option("--dtype", flags->dtype, "Type of the elements: f32, bf16 or f16")
      ->capture_default_str();
  verb->add_option("--nodes", flags->nodes, "Number of nodes that the ranks are on, in order")
      ->capture_default_str();
  verb->add_option("--devices-per-node", flags->devices_per_node,
                   "Number of ranks of a node (default: ranks / nodes)");
  AddPlanOptions(verb, &flags->options);
  verb->add_flag("--full", flags->full, "Print the steps of every rank, too");
  OnVerb(verb, command, flags, RunPlan);
}

}  // namespace agmm
