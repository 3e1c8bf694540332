#include "daemon/tensor/access.h"

#include <atomic>
#include <memory>
#include <utility>

#include "kernels/base/random.h"

namespace agmm {
namespace {

CallContext WithoutEnd(CallContext call) {
  call.deadline = absl::InfiniteFuture();
  call.cancel = std::make_shared<CancelToken>();
  return call;
}

}  // namespace

void BeginAccess(const TransferParts& parts, const CallContext& call,
                 v1::BeginAccessRequest request, Reply<v1::BeginAccessResponse> reply) {
  request.set_node(parts.node);
  request.set_access_id(RandomId());
  const CallContext endless = WithoutEnd(call);
  const auto answered = std::make_shared<std::atomic<bool>>(false);
  parts.control->BeginAccess(
      endless, request,
      [answered, reply = std::move(reply)](absl::StatusOr<v1::BeginAccessResponse> begun) {
        *answered = true;
        reply(std::move(begun));
      });
  // One that is granted meanwhile, or asked for behind this, is the caller's to end, as without it.
  call.cancel->OnCancel([parts, endless, answered, id = request.access_id()](const absl::Status&) {
    if (*answered) return;
    EndAccess(parts, endless, id, AccessEnd::kUntouched,
              [](const absl::StatusOr<v1::EndAccessResponse>&) {});
  });
}

void EndAccess(const TransferParts& parts, const CallContext& call, uint64_t access_id,
               AccessEnd how, Reply<v1::EndAccessResponse> reply) {
  v1::EndAccessRequest request;
  request.set_access_id(access_id);
  request.set_node(parts.node);
  request.set_commit(how == AccessEnd::kCommitted);
  request.set_untouched(how == AccessEnd::kUntouched);
  parts.control->EndAccess(WithoutEnd(call), request, std::move(reply));
}

}  // namespace agmm
