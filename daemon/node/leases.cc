#include "daemon/node/leases.h"

#include <atomic>
#include <memory>
#include <utility>

#include "kernels/base/deadline.h"
#include "kernels/base/random.h"

namespace agmm {
namespace {

CallContext WithoutEnd(CallContext call) {
  call.deadline = Deadline::Infinite();
  call.cancel = std::make_shared<CancelToken>();
  return call;
}

}  // namespace

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
  // A lease that is granted all the same is returned by the caller.
  call.cancel->OnCancel([parts, endless, answered, id = request.lease_id()](const absl::Status&) {
    if (*answered) return;
    EndLease(parts, endless, {id, 0, parts.io->generation()}, LeaseEnd::kUntouched,
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
        io->Explain(lease.tensor_id, lease.generation, ended.status(), reply);
      });
}

}  // namespace agmm
