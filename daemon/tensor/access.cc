#include "daemon/tensor/access.h"

#include <memory>
#include <utility>

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
  parts.control->BeginAccess(WithoutEnd(call), request, std::move(reply));
}

void EndAccess(const TransferParts& parts, const CallContext& call, uint64_t access_id, AccessEnd how,
               Reply<v1::EndAccessResponse> reply) {
  v1::EndAccessRequest request;
  request.set_access_id(access_id);
  request.set_commit(how == AccessEnd::kCommitted);
  request.set_untouched(how == AccessEnd::kUntouched);
  parts.control->EndAccess(WithoutEnd(call), request, std::move(reply));
}

}  // namespace agmm
