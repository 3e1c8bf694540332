// Jobs as text for people. Pure. What is not known says so, and how to know it.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "agmm/v1/job.pb.h"

namespace agmm {

// One row a job, at most 100 columns; a line that says so where there are none.
std::string JobTable(const v1::ListJobsResponse& list);
// What ran and why, its figures, and its events.
std::string JobText(const v1::Job& job);
// "  2     0.013 s  running": its number, when it happened since the job was created, and what.
std::string EventLine(const v1::JobEvent& event, absl::Duration after);
// Of a job that succeeded, in a line: "ring, 2 chunks a shard: T 12.3 ms an epoch, 1.2 TFLOP/s, R
// 0.97".
std::string FigureLine(const v1::Job& job);

}  // namespace agmm
