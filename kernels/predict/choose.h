// Chooses the open options of a request by prediction: candidates are estimated, the best of them
// planned and simulated, and the fastest is taken.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/predict/platform.h"
#include "kernels/schedule/plan.h"

namespace agmm {

// The most candidates that are planned and simulated.
inline constexpr size_t kMostSimulated = 12;

// The most ranks of a short choice.
inline constexpr int kFewRanks = 8;
// Returns the steps of the plans that a choice may compare. They bound its time alike everywhere,
// which a clock does not: a choice depends on the question alone.
int64_t ComparedStepsFor(int ranks);

struct ChooseLimits {
  int64_t workspace_bytes = kMaxWorkspaceBytes;  // the most that a plan may use on a rank
  int64_t steps = kMaxPlanSteps;                 // of a plan, joins included
  // Three quarters of it bound the steps of simulated plans, and half of it a part of the steps of
  // estimated ones. While no candidate can be taken, four times as many steps are simulated.
  // Candidates beyond it are left out, except the one with the best estimate and the best serial
  // one. 0: ComparedStepsFor(ranks).
  int64_t compared_steps = 0;
  // Returns true once the best candidate so far must be taken, however few are compared. A safety
  // net for hosts that stall: it should be true only after many times the time that the steps take,
  // because the choice then depends on the load of the host. At least one candidate is simulated.
  std::function<bool()> out_of_time = [] { return false; };
};

// A candidate and its predicted time.
struct PlanCandidate {
  Recipe recipe;
  int64_t estimate_ns = 0;
  int64_t time_ns = 0;          // 0 if it was not simulated
  int64_t workspace_bytes = 0;  // likewise
  std::string refused;          // the reason why it cannot be taken, if it was found late
};

struct Choice {
  Recipe recipe;
  int64_t compared_steps = 0;  // as in ChooseLimits
  int64_t time_ns = 0;         // predicted
  int64_t serial_ns = 0;       // of the fastest serial candidate; 0 if none was simulated
  // One line with figures: "auto takes ring in 4 chunks: predicted 212 us; next hierarchical 231
  // us; serial 290 us; machine cpu-tcp". It also names the options that no plan can keep, and those
  // that only the serial plan ignores, which is then no alternative.
  std::string why;
  std::vector<PlanCandidate> candidates;  // simulated ones, fastest first, and then refused ones
};

// Keeps every option that `asked` sets, if any plan can. Errors: those of ResolveOptions, and
// RESOURCE_EXHAUSTED if no plan is within the limits.
absl::StatusOr<Choice> Choose(const Problem& problem, const Platform& platform,
                              const PlanOptions& asked, const ChooseLimits& limits = {});

// "direct in 4 chunks, split N=x".
std::string RecipeText(const Problem& problem, const Recipe& recipe, bool with_split);
// "machine cpu-tcp 7"; without a version for a preset.
std::string LabelOf(const Machine& machine);

}  // namespace agmm
