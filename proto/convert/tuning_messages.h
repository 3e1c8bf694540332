// Messages <-> tuned plans.
#pragma once

#include "absl/status/statusor.h"
#include "agmm/v1/tuning.pb.h"
#include "kernels/predict/tuning.h"

namespace agmm {

// Returns the plan, with spec and mesh as the planner writes them. Checks the problem, that the
// options are concrete and fit it, and that figures are finite; but not that the options fit the
// ranks' nodes, which the planner does where the plan is used. `hardware` may be empty. Errors:
// INVALID_ARGUMENT, one line that begins with the path of the field, such as "options.algorithm".
absl::StatusOr<TunedPlan> FromProto(const v1::TunedPlan& proto);
v1::TunedPlan ToProto(const TunedPlan& plan);

}  // namespace agmm
