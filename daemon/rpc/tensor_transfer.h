// The contents of a tensor through this daemon: one reactor a call. Each opens the tensor at the
// sequencer, moves blocks with two of them in hand, and closes it, however the call ends.
#pragma once

#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/call_context.h"
#include "daemon/control.h"
#include "daemon/tensor/tensor_io.h"
#include "daemon/world/loop.h"

namespace agmm {

// A client that neither sends nor takes bytes for so long loses its access, so that others get
// theirs.
inline constexpr absl::Duration kClientSilenceLimit = absl::Seconds(60);

// What a transfer works with; all outlive it.
struct TransferParts {
  Control* control;
  TensorIo* io;
  Loop* loop;
  int node;  // this daemon
};

// The reactors delete themselves. `response` lives until the call is finished, as gRPC has it.
grpc::ServerReadReactor<v1::WriteTensorRequest>* StartWriteTensor(
    const TransferParts& parts, CallContext call, v1::WriteTensorResponse* response);
grpc::ServerWriteReactor<v1::ReadTensorResponse>* StartReadTensor(
    const TransferParts& parts, CallContext call, grpc::CallbackServerContext* context,
    uint64_t tensor_id);

// Opens and closes accesses on behalf of `call`, also when its client is gone or its deadline over:
// the answer to an access that was asked for must come, or nobody could close it.
void BeginAccess(const TransferParts& parts, const CallContext& call, uint64_t tensor_id,
                 bool write, Reply<v1::BeginAccessResponse> reply);
void EndAccess(const TransferParts& parts, const CallContext& call, uint64_t access_id, bool commit,
               Reply<v1::EndAccessResponse> reply);

}  // namespace agmm
