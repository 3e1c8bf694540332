#include "daemon/node/leases.h"

#include <atomic>
#include <memory>
#include <utility>

#include "kernels/base/deadline.h"
#include "kernels/base/random.h"
#include "kernels/base/reason.h"

namespace agmm {
namespace {

CallContext WithoutEnd(CallContext call) {
  call.deadline = Deadline::Infinite();
  call.cancel = std::make_shared<CancelToken>();
  return call;
}

}  // namespace

std::shared_ptr<OwnerQuota> TransferMemory(int64_t bytes) {
  return std::make_shared<OwnerQuota>(
      OwnerQuota::Words{"tensors", "wait in this daemon's memory",
                        "wait for transfers to end, ask another daemon, or raise "
                        "local.transfer_memory",
                        /*bytes=*/true},
      OwnerQuota::Bounds{.all = bytes, .hosts = bytes / 4 * 3, .owner = bytes / 2});
}

absl::StatusOr<std::shared_ptr<void>> TakeMemory(const TransferParts& parts,
                                                 const std::string& principal, int64_t bytes) {
  const std::shared_ptr<OwnerQuota> memory = parts.memory;
  if (const absl::Status taken = memory->Take(principal, bytes); !taken.ok())
    return WithReason(taken, kReasonTransfersFull);
  return std::shared_ptr<void>(
      nullptr, [memory, principal, bytes](void*) { memory->Return(principal, bytes); });
}

void BeginLease(const TransferParts& parts, const CallContext& call, v1::BeginLeaseRequest request,
                Reply<v1::BeginLeaseResponse> reply) {
  request.set_node(parts.node);
  request.set_lease_id(RandomId());
  const CallContext endless = WithoutEnd(call);
  const auto answered = std::make_shared<std::atomic<bool>>(false);
  parts.sequencer->begin_lease(
      endless, request,
      [answered, reply = std::move(reply)](absl::StatusOr<v1::BeginLeaseResponse> begun) {
        *answered = true;
        reply(std::move(begun));
      });
  // If the lease is granted all the same, the caller returns it.
  call.cancel->OnCancel([parts, endless, answered, id = request.lease_id()](const absl::Status&) {
    if (*answered) return;
    EndLease(parts, endless, {id, 0, parts.io->local_generation()}, LeaseEnd::kUntouched,
             [](const absl::StatusOr<v1::EndLeaseResponse>&) {});
  });
}

void EndLease(const TransferParts& parts, const CallContext& call, const LeaseOfTensor& lease,
              LeaseEnd how, Reply<v1::EndLeaseResponse> reply) {
  v1::EndLeaseRequest request;
  request.set_lease_id(lease.lease_id);
  request.set_node(parts.node);
  request.set_commit(how == LeaseEnd::kCommitted);
  request.set_untouched(how == LeaseEnd::kUntouched);
  parts.sequencer->end_lease(
      WithoutEnd(call), request,
      [io = parts.io, lease, reply = std::move(reply)](absl::StatusOr<v1::EndLeaseResponse> ended) {
        if (ended.ok()) return reply(std::move(ended));
        io->Explain(lease.tensor_id, lease.local_generation, ended.status(), reply);
      });
}

}  // namespace agmm
