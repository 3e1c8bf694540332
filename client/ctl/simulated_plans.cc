#include "client/ctl/simulated_plans.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "client/ctl/plan_limits.h"
#include "kernels/base/status.h"
#include "kernels/predict/choose_tuned.h"
#include "kernels/schedule/plan_hash.h"

namespace agmm {
namespace {

void DropSteps(SimulatedPlan* plan) {
  plan->schedule = {};
  plan->simulation.steps = {};
}

}  // namespace

absl::StatusOr<References*> PlanSimulator::ReferencesFor(const Split& split) {
  const std::string name = SplitText(problem_, split);
  if (const auto found = references_.find(name); found != references_.end()) return &found->second;
  AGMM_ASSIGN_OR_RETURN(const References references, ReferencesOf(problem_, platform_, split));
  return &(references_[name] = references);
}

void PlanSimulator::PredictAgain(SimulatedPlan* plan) const {
  plan->prediction = PredictionOf(plan->simulation, references_.at(plan->options.split));
}

std::optional<Choice> PlanSimulator::TunedChoice(const PlanOptions& options) const {
  if (tuned_ == nullptr) return std::nullopt;
  const TuningKey key =
      TuningKeyOf(problem_, platform_.topology, platform_.machine, tuned_->hardware);
  return ChooseTuned(problem_, platform_, options, tuned_->table.Find(key));
}

absl::StatusOr<SimulatedPlan> PlanSimulator::Simulate(const PlanOptions& options) {
  absl::StatusOr<Choice> choice = Choose(problem_, platform_, options);
  if (choice.ok()) return SimulateRecipe(choice->recipe, std::move(choice->why));
  if (!absl::IsResourceExhausted(choice.status())) return choice.status();
  AGMM_ASSIGN_OR_RETURN(ResolvedOptions resolved,
                        ResolveOptions(problem_, platform_.topology, options));
  return SimulateRecipe(resolved.recipe, std::move(resolved.why));
}

absl::StatusOr<SimulatedPlan> PlanSimulator::SimulateRecipe(const Recipe& recipe, std::string why) {
  const Topology& topology = platform_.topology;
  const PlanCost cost = CostOf(problem_, topology, recipe);
  AGMM_RETURN_IF_ERROR(CheckMemory(cost));
  SimulatedPlan plan;
  AGMM_ASSIGN_OR_RETURN(plan.schedule, PlanWithinMemory(problem_, topology, recipe));
  AGMM_ASSIGN_OR_RETURN(plan.simulation, agmm::Simulate(problem_, platform_, plan.schedule));
  AGMM_ASSIGN_OR_RETURN(References* const references, ReferencesFor(recipe.split));
  // In pieces the transfers may take less time than by any route of the references.
  if (references->complete) {
    if (const auto alone = TransfersNsOf(problem_, platform_, recipe); alone.ok())
      references->comm_ns = std::min(references->comm_ns, *alone);
  }
  plan.prediction = PredictionOf(plan.simulation, *references);
  plan.algorithm = plan.schedule.algorithm;
  plan.options = OptionsOf(problem_, recipe);
  plan.why = std::move(why);
  plan.refused = RefusedByDaemons(cost);
  if (plan.refused.empty())
    plan.refused = TooLargeFor(platform_.machine, problem_, plan.schedule.workspace_bytes);
  plan.hash = PlanHash(problem_, plan.schedule);
  for (const std::vector<Step>& steps : plan.schedule.ranks)
    plan.steps += static_cast<int64_t>(steps.size());
  return plan;
}

absl::StatusOr<SimulatedPlans> PlanSimulator::SimulateAll(
    PlanOptions options, const std::function<void(const std::string& algorithm)>& progress) {
  SimulatedPlans all;
  std::optional<SimulatedPlan> best;  // the only one with its steps, because they are large
  const auto keep = [&](SimulatedPlan plan) {
    DropSteps(&plan);
    all.plans.push_back(std::move(plan));
  };
  absl::Status first_refusal;
  for (const Algorithm& algorithm : Algorithms()) {
    progress(algorithm.name);
    options.algorithm = algorithm.name;
    absl::StatusOr<Choice> choice = Choose(problem_, platform_, options);
    absl::StatusOr<SimulatedPlan> plan =
        choice.ok() ? SimulateRecipe(choice->recipe, std::move(choice->why)) : choice.status();
    if (!plan.ok()) {
      if (all.refused.empty()) first_refusal = Annotate(plan.status(), algorithm.name);
      all.refused.push_back({algorithm.name, std::string(plan.status().message())});
    } else if (!best) {
      best = *std::move(plan);
    } else if (plan->prediction.time_ns < best->prediction.time_ns) {
      keep(*std::exchange(best, *std::move(plan)));
    } else if (plan->hash != best->hash) {  // all are the same if nothing has to move
      keep(*std::move(plan));
    }
  }
  if (!best) return Annotate(first_refusal, "no algorithm can plan this");
  progress("auto");
  options.algorithm = "auto";
  // As daemons do.
  std::optional<Choice> tuned = TunedChoice(options);
  all.taken_is_tuned = tuned.has_value();
  absl::StatusOr<Choice> choice = tuned ? *std::move(tuned) : Choose(problem_, platform_, options);
  if (choice.ok()) {
    AGMM_ASSIGN_OR_RETURN(all.taken, SimulateRecipe(choice->recipe, std::move(choice->why)));
    DropSteps(&*all.taken);
  }
  all.plans.insert(all.plans.begin(), *std::move(best));
  // Later plans may have lowered T_comm.
  for (SimulatedPlan& plan : all.plans) PredictAgain(&plan);
  if (all.taken.has_value()) PredictAgain(&*all.taken);
  absl::c_stable_sort(all.plans, [](const SimulatedPlan& x, const SimulatedPlan& y) {
    return x.prediction.time_ns < y.prediction.time_ns;
  });
  return all;
}

}  // namespace agmm
