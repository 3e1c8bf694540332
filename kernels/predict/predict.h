// The predicted times of a plan, and what it is compared with.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/predict/platform.h"
#include "kernels/predict/simulate.h"
#include "kernels/schedule/plan.h"

namespace agmm {

// References of a problem on a platform that do not depend on the plan.
struct References {
  // T_gemm: the largest local product of the split, as one multiply, or in pieces if those are
  // faster.
  int64_t gemm_ns = 0;
  int64_t comm_ns = 0;     // T_comm: the transfers alone, by the fastest of the routes
  int64_t unfused_ns = 0;  // T_unfused: serial
  // False if serial has more than kMaxPlanSteps steps, so that planning it takes long: comm_ns and
  // unfused_ns are then 0.
  bool complete = true;
};

struct Prediction {
  int64_t time_ns = 0;  // T
  References references;
  // R = max(T_gemm, T_comm) / T; E = 1 - (T - T_gemm) / (T_unfused - T_gemm), 0 if T_unfused is not
  // 5 % over T_gemm; speedup = T_unfused / T. All are 0 if the references are not complete.
  double overlap = 0, efficiency = 0, speedup = 0;
  std::string limit;  // "node 0's port, out: busy 97 %": the busiest resource
};

// Returns T_gemm; 0 for a collective.
int64_t GemmNsOf(const Problem& problem, const Platform& platform, const Split& split);
// Errors: those of PlanWith and Simulate.
absl::StatusOr<References> ReferencesOf(const Problem& problem, const Platform& platform,
                                        const Split& split);
// Returns the time of the plan's transfers alone. Where multiplies read other ranks' memory in
// place, it is at least the work of the busiest link. Errors: RESOURCE_EXHAUSTED for more than
// kMaxPlanSteps steps; those of PlanWith and Simulate.
absl::StatusOr<int64_t> TransfersNsOf(const Problem& problem, const Platform& platform,
                                      const Recipe& recipe);
Prediction PredictionOf(const Simulation& simulation, const References& references);

}  // namespace agmm
