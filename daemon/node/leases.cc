#include "daemon/node/leases.h"

#include <atomic>
#include <memory>
#include <utility>

#include "kernels/base/deadline.h"
#include "kernels/base/random.h"
#include "kernels/base/reason.h"

namespace agmm {

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

HeldLease::HeldLease(const TransferParts& parts, const CallContext& call, uint64_t id)
    : sequencer_(parts.sequencer),
      io_(parts.io),
      node_(parts.node),
      call_(call),
      id_(id),
      local_generation_(io_->local_generation()) {
  call_.deadline = Deadline::Infinite();
  call_.cancel = std::make_shared<CancelToken>();
}

void HeldLease::Begin(const TransferParts& parts, const CallContext& call,
                      v1::BeginLeaseRequest request, Reply<HeldLease> reply) {
  const HeldLease waiting(parts, call, RandomId());
  request.set_node(parts.node);
  request.set_lease_id(waiting.id_);
  const auto answered = std::make_shared<std::atomic<bool>>(false);
  parts.sequencer->begin_lease(waiting.call_, request,
                               [granted = waiting, answered, reply = std::move(reply)](
                                   absl::StatusOr<v1::BeginLeaseResponse> begun) mutable {
                                 *answered = true;
                                 if (!begun.ok()) return reply(begun.status());
                                 granted.id_ = begun->lease_id();
                                 granted.tensor_ = std::move(*begun->mutable_tensor());
                                 reply(std::move(granted));
                               });
  // If the lease is granted all the same, the caller returns it.
  call.cancel->OnCancel([waiting, answered](const absl::Status&) {
    if (*answered) return;
    waiting.Return(LeaseEnd::kUntouched, [](const absl::StatusOr<v1::EndLeaseResponse>&) {});
  });
}

absl::Status HeldLease::CheckGeneration() const {
  return io_->CheckGeneration(tensor_.tensor_id(), local_generation_);
}

void HeldLease::Return(LeaseEnd how, Reply<v1::EndLeaseResponse> reply, bool pin) const {
  v1::EndLeaseRequest request;
  request.set_lease_id(id_);
  request.set_node(node_);
  request.set_commit(how == LeaseEnd::kCommitted);
  request.set_untouched(how == LeaseEnd::kUntouched);
  request.set_pin(pin);
  sequencer_->end_lease(call_, request,
                        [io = io_, id = tensor_.tensor_id(), local_generation = local_generation_,
                         reply = std::move(reply)](absl::StatusOr<v1::EndLeaseResponse> ended) {
                          if (ended.ok()) return reply(std::move(ended));
                          io->Explain(id, local_generation, ended.status(), reply);
                        });
}

}  // namespace agmm
