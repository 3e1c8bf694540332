// When every step of jobs ran, in Chrome's trace event format, which Perfetto reads, too. Pure.
// Source: "Trace Event Format", the JSON object form.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/job.pb.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// {"schema": "agmm.trace.v1", "displayTimeUnit": "ms",
//  "otherData": {"zero_unix_us", "jobs": [{"job_id", "spec", "algorithm", "plan_hash"}]},
//  "traceEvents": [process_name of each node, thread_name of each lane of each rank,
//    {"ph": "X", "name": "multiply A[0:512] x B", "cat": "multiply", "pid": node, "tid": lane of a
//    rank,
//     "ts", "dur": microseconds,
//     "args": {"job", "rank", "lane", "step", "waits": ["3:2"], "signals": ["0:1"], "bytes" or
//     "flop"}}]}
// Of each job its last epoch; times are the nodes' own clocks, from the earliest beginning of an
// epoch. A step's time begins when its waits hold. Waits on the last epoch end in "-1"; ranks are
// the world's. The steps' meaning is planned again here. Errors: FAILED_PRECONDITION for a job that
// has not succeeded, whose times are forgotten, or whose plan this program makes differently;
// INVALID_ARGUMENT for a job that makes no sense.
absl::StatusOr<nlohmann::ordered_json> TraceOf(const std::vector<v1::Job>& jobs);

// "multiply A[0:512] x B", "send rows 0:512 of A to rank 3", with the world's ranks.
std::string StepName(const Problem& problem, const Step& step);

}  // namespace agmm
