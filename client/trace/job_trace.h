// The times of all steps of jobs as a trace (client/trace/trace_events.h). Pure.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "client/trace/ordered_json.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// {"schema": "agmm.trace.v1", "displayTimeUnit": "ms",
//  "otherData": {"zero_unix_us", "jobs": [{"job_id", "state", "spec", "algorithm", "options",
//  "plan_hash", "epoch"}]},
//  "traceEvents": those of TraceEvents, with "job" as the first argument of each slice}
//
// Contains the last epoch of each job that has ended, and the epoch in progress of one that runs: a
// step or wait that is still in progress ends where the trace ends, with "over": false. Times are
// the nodes' own clocks, from the earliest start of an epoch; a step's time begins when its waits
// hold. The names of steps come from planning the job again here. `status` names the nodes. Errors:
// FAILED_PRECONDITION for a job without times of steps (it has not begun, no node could report
// them, or they are no longer kept), and for one whose plan differs here; INVALID_ARGUMENT for an
// inconsistent job.
absl::StatusOr<Json> TraceOf(const std::vector<v1::Job>& jobs, const v1::GetStatusResponse& status);

}  // namespace agmm
