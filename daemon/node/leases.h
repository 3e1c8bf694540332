// Leases on the contents of tensors, held by the daemon that moves the bytes.
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

// Takes `bytes` of TransferParts::memory for the life of the returned object. Errors:
// RESOURCE_EXHAUSTED with TRANSFERS_FULL; clients retry a little later.
absl::StatusOr<std::shared_ptr<void>> TakeMemory(const TransferParts& parts,
                                                 const std::string& principal, int64_t bytes);

// A granted lease. Its holder returns it with Return.
class HeldLease {
 public:
  HeldLease() = default;  // no lease
  // Requests a lease on behalf of `call`, without its deadline and even after its client has left:
  // a lease whose grant was not awaited would never be returned. `request` names the target and the
  // kind of lease; its id and the node are filled in. Once `call.cancel` is cancelled, a waiting
  // lease is withdrawn and answered at once.
  static void Begin(const TransferParts& parts, const CallContext& call,
                    v1::BeginLeaseRequest request, Reply<HeldLease> reply);

  bool held() const { return id_ != 0; }
  // The tensor when the lease was granted.
  const v1::Tensor& tensor() const { return tensor_; }
  // TensorIo::local_generation when the lease was requested.
  uint64_t local_generation() const { return local_generation_; }
  // Like TensorIo::CheckGeneration: the lease is void once its generation has ended.
  absl::Status CheckGeneration() const;
  // With `pin`, the lease becomes a pin, which another call returns. If the lease's generation has
  // ended, the error is the reason for that, see TensorIo::Explain.
  void Return(LeaseEnd how, Reply<v1::EndLeaseResponse> reply, bool pin = false) const;

 private:
  HeldLease(const TransferParts& parts, const CallContext& call, uint64_t id);

  const SequencerCalls* sequencer_ = nullptr;
  TensorIo* io_ = nullptr;
  int node_ = 0;
  CallContext call_;
  uint64_t id_ = 0;
  uint64_t local_generation_ = 0;
  v1::Tensor tensor_;
};

}  // namespace agmm
