// Plans of a problem and their simulations on a platform.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/ctl/tuning_flags.h"
#include "kernels/predict/choose.h"
#include "kernels/predict/predict.h"
#include "kernels/schedule/plan.h"

namespace agmm {

struct SimulatedPlan {
  std::string algorithm;  // the schedule's: "local" if nothing has to move
  PlanOptions options;    // OptionsOf its recipe
  std::string why;        // of the choice of the options; one line, or empty
  std::string refused;    // why daemons refuse it; empty if they do not
  uint64_t hash = 0;      // PlanHash
  int64_t steps = 0;      // of all ranks
  Simulation simulation;
  Prediction prediction;
  Schedule schedule;
};

struct RefusedPlan {
  std::string algorithm, why;
};

struct SimulatedPlans {
  std::vector<SimulatedPlan> plans;  // fastest first; all but the first without steps
  // The one that daemons take, without steps; none if they refuse all. It need not be the first:
  // with `auto`, fewer plans of each algorithm compete, and of plans that take about as long the
  // one with the fewest steps is taken.
  std::optional<SimulatedPlan> taken;
  bool taken_is_tuned = false;  // measured before, so that no plans competed
  std::vector<RefusedPlan> refused;
  std::vector<std::string> tuning_skipped;  // TunedPlans::skipped
};

// Simulates plans of one problem. Plans are not verified. Keeps references to the arguments.
class PlanSimulator {
 public:
  // `tuned`: the plans that daemons take before any prediction; null: none.
  PlanSimulator(const Problem& problem, const Platform& platform, const TunedPlans* tuned = nullptr)
      : problem_(problem), platform_(platform), tuned_(tuned) {}

  // Chooses the open options by prediction. If no plan is within the limits of daemons, they get
  // the defaults of ResolveOptions instead. Errors: those of Choose, ResolveOptions, PlanWith and
  // Simulate, and RESOURCE_EXHAUSTED for a plan that does not fit into memory.
  absl::StatusOr<SimulatedPlan> Simulate(const PlanOptions& options);

  // Simulates every algorithm with the other options of `options`. Algorithms that refuse them, and
  // plans that daemons refuse, are left out. `progress` is called before each of them, and before
  // the choice among them. Errors: that of the first algorithm if none is left.
  absl::StatusOr<SimulatedPlans> SimulateAll(
      PlanOptions options, const std::function<void(const std::string& algorithm)>& progress);

 private:
  absl::StatusOr<SimulatedPlan> SimulateRecipe(const Recipe& recipe, std::string why);
  // The choice of a tuned plan; none if prediction decides.
  std::optional<Choice> TunedChoice(const PlanOptions& options) const;
  absl::StatusOr<References*> ReferencesFor(const Split& split);
  // With the references as they are now.
  void PredictAgain(SimulatedPlan* plan) const;

  const Problem& problem_;
  const Platform& platform_;
  const TunedPlans* const tuned_;
  std::map<std::string, References> references_;  // by the split's text
};

}  // namespace agmm
