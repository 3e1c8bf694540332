// Takes tuned plans in place of the choice by prediction.
#pragma once

#include <optional>

#include "kernels/predict/choose.h"
#include "kernels/predict/tuning.h"

namespace agmm {

// Returns the choice of the tuned plan that was found for the problem: its options are planned and
// simulated alone. Returns none, so that prediction decides, if
// * none was found, or the request names an algorithm;
// * the request sets an option to another value than the plan: pieces, a split, a bounded workspace
//   or carried sends. The dtype of partial sums is always set, and so is the order of sums: both
//   change C. Plans were not measured for transfers alone;
// * the options cannot be kept here, as pieces of another shape, or the plan is not within the
//   limits.
// `why` has the measured times, and the predicted one. Choose accepts `problem` and `asked`.
std::optional<Choice> ChooseTuned(const Problem& problem, const Platform& platform,
                                  const PlanOptions& asked, const TuningTable::Match& match,
                                  const ChooseLimits& limits = {});

}  // namespace agmm
