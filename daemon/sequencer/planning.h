// Plans a job outside the control thread: first chooses its open options, then makes the schedule
// and its proof. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "daemon/sequencer/admission.h"
#include "daemon/sequencer/figures.h"
#include "kernels/schedule/plan.h"

namespace agmm {

struct Planned {
  absl::Status status;
  ResolvedOptions resolved;
  PlanOptions options;   // OptionsOf(resolved.recipe), for the records of jobs
  bool large = false;    // planning and proving take long
  std::string hash;      // of the schedule, like the rest
  std::string schedule;  // Schedule::algorithm
  int64_t workspace_bytes = 0;
  ScheduleFacts facts;
};

// Resolves the options, which takes milliseconds, a tenth of a second for 256 ranks, or two tenths
// for 1,024 ranks on one axis, whose plans are too large. `status`: the errors of ResolveOptions;
// INVALID_ARGUMENT for a schedule that is too large to be proved.
Planned BeginPlan(const JobSpec& job);
// Plans and proves after BeginPlan succeeded, which takes up to a few seconds for the largest
// meshes. `status`: INTERNAL for a schedule that does not verify.
void FinishPlan(const JobSpec& job, Planned& planned);

}  // namespace agmm
