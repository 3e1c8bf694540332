// Counts the calls of a daemon.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>

#include "daemon/observe/metrics.h"

namespace agmm {

// Counts rpcs_total and rpcs_failed_total, and logs failures at debug. A call that its client ends
// does not count as failed. To be passed to ServerBuilder::experimental().SetInterceptorCreators.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallCounter(
    Metrics* metrics);

}  // namespace agmm
