// WatchJob, on any daemon: polls the sequencer and passes on what comes. Costs no thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include "agmm/v1/job.pb.h"
#include "daemon/control.h"

namespace agmm {

// `control` outlives the server.
grpc::ServerWriteReactor<v1::WatchJobResponse>* StartWatchJob(Control* control, CallContext call,
                                                              const v1::WatchJobRequest& request);

}  // namespace agmm
