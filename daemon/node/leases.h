// Leases on the contents of tensors, taken at the sequencer by the daemon that moves the bytes.
#pragma once

#include "agmm/v1/peer.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/link/lease_end.h"
#include "daemon/link/sequencer_calls.h"
#include "daemon/node/tensor_io.h"
#include "kernels/base/loop.h"

namespace agmm {

// Dependencies of a transfer; all outlive it.
struct TransferParts {
  const SequencerCalls* sequencer;
  TensorIo* io;
  Loop* loop;
  int node;  // this daemon
};

// Request and return leases on behalf of `call`, without its deadline and also after its client has
// left: a lease whose grant were not awaited would never be returned. `request` names the target
// and the kind of lease; its id and the node are filled in. Once `call.cancel` is cancelled, a
// lease that still waits is withdrawn, and answered at once.
void BeginLease(const TransferParts& parts, const CallContext& call, v1::BeginLeaseRequest request,
                Reply<v1::BeginLeaseResponse> reply);
// An error says why `generation` ended, if it did, see TensorIo::Explain.
struct LeaseOfTensor {
  uint64_t lease_id, tensor_id;
  uint64_t generation;  // as TensorIo::generation before BeginLease
};
void EndLease(const TransferParts& parts, const CallContext& call, const LeaseOfTensor& lease,
              LeaseEnd how, Reply<v1::EndLeaseResponse> reply);

}  // namespace agmm
