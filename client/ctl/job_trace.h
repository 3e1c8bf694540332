// The times of all steps of jobs, in Chrome's trace event format, which Perfetto reads, too. Pure.
// Source: "Trace Event Format", the JSON object form.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "client/ctl/json.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// {"schema": "agmm.trace.v1", "displayTimeUnit": "ms",
//  "otherData": {"zero_unix_us", "jobs": [{"job_id", "state", "spec", "algorithm", "options",
//  "plan_hash", "epoch"}]},
//  "traceEvents": [process_name of each node, thread_name and thread_sort_index of each lane of
//  each rank,
//    {"ph": "X", "name": "multiply A[0:512] x B", "cat": "multiply", "pid": node, "tid": lane of a
//    rank,
//     "ts", "dur": microseconds,
//     "args": {"job", "rank", "lane", "step", "waits": ["3:2"], "signals": ["0:1"], "bytes" or
//     "flop", "over"}},
//    the wait of a step, between the step before it on its lane and its own start:
//    {"ph": "X", "name": "wait for rank 2: send rows 0:512 of A to rank 3", "cat": "wait", ...,
//     "args": {"job", "rank", "lane", "step", "waits", "over"}},
//    from each signal to the step that waited for it: {"ph": "s"} and {"ph": "f"} of one "id"]}
//
// Contains the last epoch of each job that has ended, and the epoch in progress of one that runs: a
// step or wait that is still in progress ends where the trace ends, with "over": false. Times are
// the nodes' own clocks, from the earliest start of an epoch; a step's time begins when its waits
// hold. Waits on the previous epoch end in "-1", and have no arrows. Ranks are the world's. The
// names of steps come from planning the job again here. `status` names the nodes. Errors:
// FAILED_PRECONDITION for a job without times of steps (it has not begun, no node could report
// them, or they are no longer kept), and for one whose plan differs here; INVALID_ARGUMENT for an
// inconsistent job.
absl::StatusOr<Json> TraceOf(const std::vector<v1::Job>& jobs, const v1::GetStatusResponse& status);

}  // namespace agmm
