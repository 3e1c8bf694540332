// Checks a request against the tensors and the world. planning.h checks its plan.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/members.h"
#include "kernels/predict/machine.h"
#include "kernels/predict/tuning.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// An operand of a job, and the tensor that stands for it.
struct Binding {
  Operand operand = 0;
  uint64_t tensor = 0;   // 0 until a result with a new name has a tensor
  bool writes = false;   // else reads
  std::string new_name;  // of a tensor that is made for the job; empty: the tensor exists
};

// A job whose tensors exist and fit.
struct JobSpec {
  Problem problem;
  Topology topology;
  PlanOptions options;  // as asked
  // Predicts the times from which open options are chosen; null: they get defaults.
  std::shared_ptr<const Machine> machine;
  // The tuned plan that is for the problem, or for the nearest shape. Taken if it keeps `options`.
  TuningTable::Match tuned;
  std::shared_ptr<const TuningTable> tuning;  // has the tuned plan
  int64_t heap_bytes = 0;                     // of the rank that has least; no plan can use more
  std::string problem_key;                    // the problem and its ranks
  std::string plan_key;                       // jobs with the same key share a plan
  std::vector<Binding> bindings;              // by operand
  int repeat = 1;
  absl::Duration timeout;
};

// `will_be_written` returns true if an earlier job writes the tensor. An unused name for a result
// becomes Binding::new_name. Errors: INVALID_ARGUMENT for an invalid request; NOT_FOUND for a
// tensor that does not exist; FAILED_PRECONDITION for a tensor that does not fit or has no
// contents, with the tensor and both specs.
absl::StatusOr<JobSpec> Admit(const v1::SubmitJobRequest& request, const Members& members,
                              const Catalog& catalog,
                              const std::function<bool(uint64_t)>& will_be_written);

}  // namespace agmm
