// The contents of a tensor through this daemon: one reactor a call, which moves pieces with two of
// them in hand. They delete themselves.
#pragma once

#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/call_context.h"
#include "daemon/tensor/access.h"
#include "daemon/tensor/uploads.h"

namespace agmm {

// A client that neither sends nor takes bytes for so long loses its call.
inline constexpr absl::Duration kClientSilenceLimit = absl::Seconds(60);

// `response` lives until the call is finished, as gRPC has it.
grpc::ServerReadReactor<v1::UploadRequest>* StartUpload(Uploads* uploads, Loop* loop,
                                                        CallContext call,
                                                        v1::UploadResponse* response);
grpc::ServerWriteReactor<v1::ReadTensorResponse>* StartReadTensor(
    const TransferParts& parts, CallContext call, grpc::CallbackServerContext* context,
    const v1::ReadTensorRequest& request);

}  // namespace agmm
