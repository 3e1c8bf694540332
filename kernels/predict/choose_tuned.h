// Takes tuned plans in place of the choice by prediction.
#pragma once

#include <optional>

#include "kernels/predict/choose.h"
#include "kernels/predict/tuning.h"

namespace agmm {

// Returns the choice of the tuned plan for the problem, or for the nearest shape: its options are
// planned and simulated alone. Returns none, so that prediction decides, if
// * no plan is for this problem, or the request names an algorithm;
// * the request sets an option to another value than the plan: pieces, a split, a bounded workspace
//   or carried sends. The dtype of partial sums is always set, and so is the order of sums: both
//   change C. Plans were not measured for transfers alone;
// * the options cannot be kept here, as pieces of another shape, or the plan is not within the
//   limits.
// `why` has the measured times, and the predicted one. Choose accepts `problem` and `asked`.
std::optional<Choice> ChooseTuned(const Problem& problem, const Platform& platform,
                                  const PlanOptions& asked, const TuningTable& table,
                                  const std::string& hardware, const ChooseLimits& limits = {});

}  // namespace agmm
