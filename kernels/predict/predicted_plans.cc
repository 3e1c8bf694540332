#include "kernels/predict/predicted_plans.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "kernels/base/status.h"
#include "kernels/predict/simulate.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

// Larger plans take over 30 ms each.
constexpr int64_t kLargeSteps = 4096;

std::vector<std::string> AlgorithmsFor(const Platform& platform, bool bounded) {
  if (bounded) return {"ring", "direct"};
  if (platform.machine.within.wiring == Wiring::kTorus)
    return {"torus", "bidirectional_ring", "split_ring", "ring", "serial"};
  return {"hierarchical_peer", "hierarchical", "direct", "ring", "serial"};
}

absl::StatusOr<PredictedPlan> SimulateOne(const Problem& problem, const Platform& platform,
                                          const Recipe& recipe) {
  AGMM_ASSIGN_OR_RETURN(const Schedule schedule, PlanWith(problem, platform.topology, recipe));
  AGMM_ASSIGN_OR_RETURN(const Simulation simulation, Simulate(problem, platform, schedule));
  int64_t steps = 0;
  for (const std::vector<Step>& of_rank : schedule.ranks)
    steps += static_cast<int64_t>(of_rank.size());
  return PredictedPlan{recipe, schedule.algorithm, simulation.time_ns, schedule.workspace_bytes,
                       steps};
}

}  // namespace

absl::StatusOr<std::vector<PredictedPlan>> PredictPlans(const Problem& problem,
                                                        const Platform& platform,
                                                        const Split& split, bool bounded) {
  absl::Status refusal;
  std::vector<Recipe> recipes;
  bool is_large = false;
  for (const std::string& algorithm : AlgorithmsFor(platform, bounded)) {
    if (is_large && recipes.size() >= 2) break;
    PlanOptions options = {.algorithm = algorithm, .split = SplitText(problem, split)};
    if (bounded) options.workspace_shards = 2;
    options.chunks = options.k_chunks = 1;
    const absl::StatusOr<ResolvedOptions> resolved =
        ResolveOptions(problem, platform.topology, options);
    if (!resolved.ok()) {
      refusal = resolved.status();
      continue;
    }
    const Recipe& recipe = resolved->recipe;
    if (bounded && recipe.workspace_shards == 0) continue;
    is_large |= CostOf(problem, platform.topology, recipe).steps > kLargeSteps;
    recipes.push_back(recipe);
  }
  std::vector<PredictedPlan> plans;
  for (const Recipe& recipe : recipes) {
    absl::StatusOr<PredictedPlan> plan = SimulateOne(problem, platform, recipe);
    if (!plan.ok()) {
      refusal = plan.status();
      continue;
    }
    plans.push_back(*std::move(plan));
    if (plans.back().algorithm == "local") break;  // all of them are
  }
  if (plans.empty() && !refusal.ok()) return refusal;
  absl::c_stable_sort(
      plans, [](const PredictedPlan& x, const PredictedPlan& y) { return x.time_ns < y.time_ns; });
  return plans;
}

}  // namespace agmm
