// Bounds the memory of answers that clients do not read. gRPC keeps an answer until its client
// reads it, and does not bound this.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>

#include "daemon/observe/metrics.h"

namespace agmm {

// The bound of a server; an owner may use a quarter of it.
constexpr int64_t kUnreadAnswerBytes = 256 << 20;

// Watches all calls. A call that answers while its owner's unread answers are at the bound is
// cancelled, counted in `metrics`, which must outlive the server, and logged.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeAnswerBound(
    Metrics* metrics, int64_t bound_bytes = kUnreadAnswerBytes);

}  // namespace agmm
