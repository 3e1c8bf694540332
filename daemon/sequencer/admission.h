// Checks a request against the tensors and the world. planning.h checks its plan.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/members.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// A job whose tensors exist and fit.
struct JobSpec {
  std::string spec;
  Problem problem;
  Topology topology;
  PlanOptions options;      // as asked
  std::string problem_key;  // the problem and its ranks
  std::string plan_key;     // jobs with the same key share a plan
  uint64_t tensors[3] = {0, 0, 0};
  std::string new_c;  // the name of a tensor to create for C; else empty
  int repeat = 1;
  absl::Duration timeout;
};

// `will_be_written` returns true if an earlier job writes the tensor. An unused name for C becomes
// new_c, and tensors[kC] stays 0. Errors: INVALID_ARGUMENT for an invalid request; NOT_FOUND for a
// tensor that does not exist; FAILED_PRECONDITION for a tensor that does not fit or has no
// contents, with the tensor and both specs.
absl::StatusOr<JobSpec> Admit(const v1::SubmitJobRequest& request, const Members& members,
                              const Catalog& catalog,
                              const std::function<bool(uint64_t)>& will_be_written);

}  // namespace agmm
