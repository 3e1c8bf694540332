// The plan that a job ran, and the reports of its ranks. Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/job.pb.h"
#include "kernels/schedule/plan.h"

namespace agmm {

// Returns the job's report of each rank of the mesh, in order, or null if it is missing.
std::vector<const v1::RankReport*> ReportsByRank(const v1::Job& job, const Mesh& mesh);

// Returns the schedule that the job ran, from its concrete options. Errors: FAILED_PRECONDITION if
// the daemons planned another one.
absl::StatusOr<Schedule> PlanAgain(const Problem& problem, const Topology& topology,
                                   const v1::Job& job);

}  // namespace agmm
