// Plans a job outside the control thread: first chooses its open options, then makes the schedule
// and its proof. Without state; the clock only ends a choice on a host that stalls.
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
  PlanOptions options;      // OptionsOf(resolved.recipe), for the records of jobs
  double predicted_us = 0;  // T of the plan; 0: unknown
  bool large = false;       // planning and proving take long
  std::string hash;         // of the schedule, like the rest
  std::string schedule;     // Schedule::algorithm
  int64_t workspace_bytes = 0;
  ScheduleFacts facts;
};

// Returns true if the choice of the job's options takes long: a second or two, and more with
// bounded workspaces.
bool ChoosesLong(const JobSpec& job);

// Resolves the options. On a busy host, a choice takes up to 0.11 s of CPU for up to 8 ranks; it
// takes about 1 s for 64 and 2 s for 256 (ComparedStepsFor), but 2.9 s for 64 if no workspace fits:
// it then compares more candidates, and starts once more with bounded workspaces. On a host that
// stalls, it ends after 10 s and one more candidate.
// `status`: the errors of Choose and ResolveOptions; INVALID_ARGUMENT for a schedule that is too
// large to be proved.
Planned BeginPlan(const JobSpec& job);
// Plans and proves after BeginPlan succeeded, which takes up to a few seconds for the largest
// meshes. `status`: INTERNAL for a schedule that does not verify.
void FinishPlan(const JobSpec& job, Planned& planned);

}  // namespace agmm
