// Converts a gRPC context to the CallContext of a call, and a CallContext to the gRPC context of a
// call on its behalf.
#pragma once

#include <grpcpp/grpcpp.h>

#include <string>

#include "daemon/link/call_context.h"

namespace agmm {

// Returns the value of `key` in the metadata of a call, fit to be logged and passed on; empty
// without one.
std::string MetadataOf(const grpc::ServerContextBase& context, const char* key);

// Makes the context of a call. To be called once per call, because each context has its own cancel
// token.
CallContext CallContextOf(const grpc::ServerContextBase* context);

// Makes `to` the context of a call on behalf of `from`.
void SetCaller(const CallContext& from, grpc::ClientContext* to);

}  // namespace agmm
