// Leases on the contents of tensors, taken at the sequencer by the daemon that moves the bytes.
#pragma once

#include "agmm/v1/peer.pb.h"
#include "daemon/call_context.h"
#include "daemon/control.h"
#include "daemon/tensor/catalog.h"
#include "daemon/tensor/tensor_io.h"
#include "daemon/world/loop.h"

namespace agmm {

// What a transfer works with; all outlive it.
struct TransferParts {
  Control* control;
  TensorIo* io;
  Loop* loop;
  int node;  // this daemon
};

// Open and close accesses on behalf of `call`, also when its client is gone or its deadline over:
// the answer to an access that was asked for must come, or nobody could close it. `request` names
// the target and what for; its id and the node are filled in. Once `call.cancel` is cancelled, an
// access that still waits is taken back, and its answer comes at once.
void BeginAccess(const TransferParts& parts, const CallContext& call,
                 v1::BeginAccessRequest request, Reply<v1::BeginAccessResponse> reply);
void EndAccess(const TransferParts& parts, const CallContext& call, uint64_t access_id,
               AccessEnd how, Reply<v1::EndAccessResponse> reply);

}  // namespace agmm
