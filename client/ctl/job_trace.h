// The times of all steps of jobs, in Chrome's trace event format, which Perfetto reads, too. Pure.
// Source: "Trace Event Format", the JSON object form.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/job.pb.h"
#include "client/ctl/json.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// {"schema": "agmm.trace.v1", "displayTimeUnit": "ms",
//  "otherData": {"zero_unix_us", "jobs": [{"job_id", "spec", "algorithm", "options",
//  "plan_hash"}]}, "traceEvents": [process_name of each node, thread_name of each lane of each
//  rank,
//    {"ph": "X", "name": "multiply A[0:512] x B", "cat": "multiply", "pid": node, "tid": lane of a
//    rank,
//     "ts", "dur": microseconds,
//     "args": {"job", "rank", "lane", "step", "waits": ["3:2"], "signals": ["0:1"], "bytes" or
//     "flop"}}]}
// Contains the last epoch of each job. Times are the nodes' own clocks, from the earliest start of
// an epoch; a step's time begins when its waits hold. Waits on the previous epoch end in "-1";
// ranks are the world's. The names of steps come from planning the job again here. Errors:
// FAILED_PRECONDITION for a job that has not succeeded, whose times are no longer kept, or whose
// plan differs here; INVALID_ARGUMENT for a job that makes no sense.
absl::StatusOr<Json> TraceOf(const std::vector<v1::Job>& jobs);

}  // namespace agmm
