// RunJobs: many jobs of one caller, in batches both ways.
#pragma once

#include <grpcpp/grpcpp.h>

#include "agmm/v1/job.pb.h"
#include "daemon/control.h"

namespace agmm {

// `control` outlives the call.
grpc::ServerBidiReactor<v1::RunJobsRequest, v1::RunJobsResponse>* StartRunJobs(Control* control,
                                                                               CallContext call);

}  // namespace agmm
