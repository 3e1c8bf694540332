// Leases on the contents of tensors, taken at the sequencer by the daemon that moves the bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/link/owner_quota.h"
#include "daemon/link/sequencer_calls.h"
#include "daemon/node/tensor_io.h"
#include "kernels/base/loop.h"

namespace agmm {

// Returns a quota for the bytes of tensors that wait in the daemon's memory between clients and
// devices: half of `bytes` for one owner, three quarters for all hosts together.
std::shared_ptr<OwnerQuota> TransferMemory(int64_t bytes);

// Dependencies of a transfer; all must outlive it.
struct TransferParts {
  const SequencerCalls* sequencer;
  TensorIo* io;
  Loop* loop;
  int node;  // this daemon
  std::shared_ptr<OwnerQuota> memory = TransferMemory(int64_t{512} << 20);
};

// Request and return leases on behalf of `call`, without its deadline and even after its client has
// left: a lease whose grant was not awaited would never be returned. `request` names the target and
// the kind of lease; its id and the node are filled in. Once `call.cancel` is cancelled, a waiting
// lease is withdrawn and answered at once.
void BeginLease(const TransferParts& parts, const CallContext& call, v1::BeginLeaseRequest request,
                Reply<v1::BeginLeaseResponse> reply);
// If `local_generation` has ended, the error is the reason for that, see TensorIo::Explain.
struct LeaseOfTensor {
  uint64_t lease_id, tensor_id;
  uint64_t local_generation;  // TensorIo::local_generation before BeginLease
};
void EndLease(const TransferParts& parts, const CallContext& call, const LeaseOfTensor& lease,
              LeaseEnd how, Reply<v1::EndLeaseResponse> reply);

// Takes `bytes` of TransferParts::memory for the life of the returned object. Errors:
// RESOURCE_EXHAUSTED with TRANSFERS_FULL; clients retry a little later.
absl::StatusOr<std::shared_ptr<void>> TakeMemory(const TransferParts& parts,
                                                 const std::string& principal, int64_t bytes);

}  // namespace agmm
