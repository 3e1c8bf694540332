// The fastest plan of a product with given shardings and a given split, by simulation.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/predict/platform.h"
#include "kernels/schedule/plan.h"

namespace agmm {

struct PredictedPlan {
  Recipe recipe;
  std::string algorithm;  // as in Schedule: "local" if nothing travels
  int64_t time_ns = 0, workspace_bytes = 0;
  int64_t steps = 0;  // the work of its simulation
};

// Plans and simulates a few algorithms with the shards whole. On a torus: torus, both directions of
// a ring, the two halves of shards around a ring, a ring, and serial; elsewhere hierarchical_peer,
// hierarchical, direct, a ring, and serial. If plans are large, the first two of these.
// `bounded`: with room for two shards at a time instead; may have no plan. Returns the fastest
// first. Errors: those of the last refusal, if no plan is possible.
absl::StatusOr<std::vector<PredictedPlan>> PredictPlans(const Problem& problem,
                                                        const Platform& platform,
                                                        const Split& split, bool bounded = false);

}  // namespace agmm
