#include "kernels/schedule/plan.h"

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/build.h"
#include "kernels/schedule/cut_demands.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/movement.h"

namespace agmm {
namespace {

// The name of the algorithm if nothing travels, whichever was requested.
constexpr char kLocal[] = "local";

// Builds and names a schedule. Its movements take memory, and Close does not need them.
Schedule BuildOf(const Problem& problem, const Topology& topology, const Demands& demands,
                 const Algorithm& algorithm, const BuildOptions& options) {
  std::vector<Movement> movements;
  for (const Demand& demand : demands.list)
    movements.emplace_back(problem, topology, demand, algorithm);
  Schedule schedule = Build(problem, topology, demands.work, movements, options);
  const bool local =
      absl::c_none_of(movements, [](const Movement& movement) { return movement.travels(); });
  schedule.algorithm = local ? kLocal : algorithm.name;
  return schedule;
}

}  // namespace

std::string ToString(const PlanOptions& options) {
  std::string text = absl::StrFormat("%s, chunks %d, along K %d", options.algorithm, options.chunks,
                                     options.k_chunks);
  if (!options.split.empty()) absl::StrAppend(&text, ", split ", options.split);
  if (options.workspace_shards > 0)
    absl::StrAppend(&text, ", workspace of ", options.workspace_shards, " shards");
  if (options.carried) absl::StrAppend(&text, ", carried");
  if (options.transfers_only) absl::StrAppend(&text, ", transfers only");
  if (options.partials != DType::kF32)
    absl::StrAppend(&text, ", partials ", Name(options.partials));
  return text;
}

PlanOptions OptionsOf(const Problem& problem, const Recipe& recipe) {
  PlanOptions options;
  options.algorithm = recipe.algorithm->name;
  options.chunks = recipe.chunks;
  options.k_chunks = recipe.k_chunks;
  options.split = SplitText(problem, recipe.split);
  options.workspace_shards = recipe.workspace_shards;
  options.carried = recipe.carried;
  options.transfers_only = recipe.transfers_only;
  options.partials = recipe.partials;
  return options;
}

PlanOptions GatherAlone() {
  PlanOptions options;
  options.algorithm = "hierarchical_peer";
  options.transfers_only = true;
  return options;
}

std::vector<std::string> AlgorithmNames() {
  std::vector<std::string> names = {"auto"};
  for (const Algorithm& algorithm : Algorithms()) names.push_back(algorithm.name);
  return names;
}

int64_t LeastBetweenNodes(const Problem& problem, const Topology& topology, const Split& split,
                          DType partials) {
  const Algorithm& fewest = *FindAlgorithm("hierarchical");
  int64_t bytes = 0;
  for (const Demand& demand : CutDemands(problem, topology, split, fewest, 1, 1, partials).list) {
    if (!demand.travels) continue;
    for (const Chunk& chunk : RefineDemand(problem, topology, demand, fewest).list) {
      // A rank whose node has the chunk gets it from there. Each group of ranks sums for itself.
      std::set<std::pair<int, int>> nodes;
      for (const Source& source : chunk.sources) {
        const int group = demand.groups.empty() ? 0 : demand.groups[source.rank];
        for (Rank to : source.needers) {
          if (!topology.SameNode(source.rank, to)) nodes.emplace(group, topology.node_of_rank[to]);
        }
      }
      bytes += static_cast<int64_t>(nodes.size()) * chunk.block.rows.size() *
               chunk.block.cols.size() * SizeOf(DTypeOf(problem, demand));
    }
  }
  return bytes;
}

PlanCost CostOf(const Problem& problem, const Topology& topology, const Recipe& recipe) {
  static_assert(kMostCountedHops >= kMaxPlanSteps, "the steps of a plan that fits are exact");
  // Measured with plans of 780,000 to three million steps: 1,150 to 1,210 bytes (NOTES.md).
  constexpr double kStepBytes = 1280;
  const auto whole = [](double number) {
    return static_cast<int64_t>(std::min(number, 9e18));  // fits into an int64_t
  };
  const Demands demands =
      CutDemands(problem, topology, recipe.split, *recipe.algorithm, recipe.chunks, recipe.k_chunks,
                 recipe.partials, recipe.workspace_shards > 0);
  const double steps = CountSteps(problem, topology, demands, *recipe.algorithm);
  return {whole(steps), whole(steps * kStepBytes)};
}

absl::StatusOr<Schedule> Plan(const Problem& problem, const Topology& topology,
                              const PlanOptions& options) {
  AGMM_RETURN_IF_ERROR(Validate(problem));
  AGMM_ASSIGN_OR_RETURN(const ResolvedOptions resolved, ResolveOptions(problem, topology, options));
  return PlanWith(problem, topology, resolved.recipe);
}

absl::StatusOr<Schedule> PlanWith(const Problem& problem, const Topology& topology,
                                  const Recipe& recipe) {
  AGMM_RETURN_IF_ERROR(CheckTopology(problem, topology));
  if (HasProduct(problem)) {
    AGMM_RETURN_IF_ERROR(CheckSplit(problem, recipe.split));
  } else if (recipe.split != Split{}) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the recipe splits a product, and %s has none; leave the split out", SpecText(problem)));
  }
  const Algorithm& algorithm = *recipe.algorithm;
  const Demands demands = CutDemands(problem, topology, recipe.split, algorithm, recipe.chunks,
                                     recipe.k_chunks, recipe.partials, recipe.workspace_shards > 0);
  BuildOptions build;
  build.arrivals = algorithm.arrivals;
  build.carried = recipe.carried;
  const Demand& gathered = LargestDemand(problem, demands);
  build.places = recipe.workspace_shards * gathered.pieces.rows * gathered.pieces.cols;
  Schedule schedule = BuildOf(problem, topology, demands, algorithm, build);
  if (schedule.workspace_bytes > kMaxWorkspaceBytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the plan needs a workspace of %s on every rank, but the limit is %s; use smaller sizes, "
        "more ranks or a bounded workspace",
        FormatBytes(schedule.workspace_bytes), FormatBytes(kMaxWorkspaceBytes)));
  }
  if (schedule.algorithm != kLocal) schedule = Close(std::move(schedule));
  return recipe.transfers_only ? TransfersOf(std::move(schedule)) : schedule;
}

Schedule TransfersOf(Schedule schedule) {
  for (std::vector<Step>& steps : schedule.ranks) {
    for (Step& step : steps) {
      if (std::holds_alternative<Multiply>(step.op)) step.op = Join();
    }
  }
  return schedule;
}

}  // namespace agmm
