// Problems in messages. Everything that comes from the wire is checked here.
#pragma once

#include "absl/status/statusor.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// Sets mesh and operands.
void SetProblem(const Problem& problem, v1::PreparePlan* prepare);
// Sets mesh and operands, and for older clients the fields that only a product has.
void SetProblem(const Problem& problem, v1::Job* job);

// Errors: INVALID_ARGUMENT, and those of Validate.
absl::StatusOr<Problem> ProblemOf(const v1::PreparePlan& prepare);
// By the product's own fields where an older daemon made the record.
absl::StatusOr<Problem> ProblemOf(const v1::Job& job);

}  // namespace agmm
