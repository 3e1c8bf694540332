// The CallContext of every call, made in one interceptor.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_interceptor.h>

#include <memory>

#include "daemon/call_context.h"
#include "daemon/observe/metrics.h"

namespace agmm {

// Metadata keys, the same on both sides of a forwarded call.
inline constexpr char kRequestIdKey[] = "x-request-id";
inline constexpr char kTraceparentKey[] = "traceparent";
inline constexpr char kSessionKey[] = "x-agmm-session";
// Who asked the daemon that forwards the call. Ignored over a unix socket, where the kernel knows
// better.
inline constexpr char kPrincipalKey[] = "x-agmm-principal";

// Makes the context of each call before its handler runs, counts rpcs_total and rpcs_failed_total,
// and logs failures at debug. For ServerBuilder::experimental().SetInterceptorCreators.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallContextInterceptors(
    Metrics* metrics);

// The context that the interceptor made for the call of `context`. For handlers.
CallContext CallContextOf(const grpc::ServerContextBase* context);

}  // namespace agmm
