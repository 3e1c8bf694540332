// How a job ended.
#pragma once

#include "absl/status/status.h"
#include "agmm/v1/job.pb.h"

namespace agmm {

// OK where it has succeeded, else why not, as the daemon has it: never OK.
absl::Status OutcomeOf(const v1::Job& job);

}  // namespace agmm
