// Fills: a write whose values every node makes for itself.
#include <memory>
#include <utility>

#include "daemon/tensor/catalog_impl.h"
#include "daemon/tensor/fill.h"
#include "kernels/base/status.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm::catalog {

absl::StatusOr<Entry*> CatalogImpl::FillTarget(const CallContext& ctx,
                                               const v1::FillTensorRequest& request, Lease* lease) {
  AGMM_RETURN_IF_ERROR(members_->Complete());
  if (request.has_put()) {
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(request.put().spec().dtype()));
    AGMM_RETURN_IF_ERROR(CheckFill(request.fill(), dtype));
    return OpenPut(ctx, request.put(), lease);
  }
  Entry* entry = FindLinked(request.tensor_id());
  if (entry == nullptr) return NotFound(request.tensor_id());
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(entry->tensor.spec().dtype()));
  AGMM_RETURN_IF_ERROR(CheckFill(request.fill(), dtype));
  return entry;
}

void CatalogImpl::FillTensor(const CallContext& ctx, const v1::FillTensorRequest& request,
                             Reply<v1::Tensor> reply) {
  Lease lease;
  lease.kind = LeaseKind::kWrite;
  lease.cancel = ctx.cancel;
  const absl::StatusOr<Entry*> entry = FillTarget(ctx, request, &lease);
  if (!entry.ok()) return reply(entry.status());
  lease.granted_fn = [this, fill = request.fill(),
                      reply = std::move(reply)](const absl::StatusOr<uint64_t>& id) {
    id.ok() ? StartFill(*id, fill, reply) : reply(id.status());
  };
  Admit(*entry, std::move(lease));
}

// From here on it runs to its end, whoever goes: no node can be told to stop, and none may be
// writing when the lease ends.
void CatalogImpl::StartFill(uint64_t lease, const v1::Fill& fill, Reply<v1::Tensor> reply) {
  Entry* entry = OfLease(lease);
  if (entry == nullptr)
    return reply(absl::AbortedError("the fill ended with its generation; repeat it"));
  entry->filling = std::make_unique<Filling>();
  entry->filling->lease = lease;
  entry->filling->nodes = entry->nodes;
  entry->filling->reply = std::move(reply);
  v1::Command command;
  command.mutable_fill_shards()->set_tensor_id(entry->tensor.tensor_id());
  *command.mutable_fill_shards()->mutable_fill() = fill;
  for (int node : entry->nodes) members_->Send(node, command);
}

void CatalogImpl::OnFilled(int node, const v1::TensorFilled& filled) {
  const auto it = entries_.find(filled.tensor_id());
  if (it == entries_.end() || it->second.filling == nullptr) return;
  Entry* entry = &it->second;
  Filling& filling = *entry->filling;
  if (filling.nodes.erase(node) == 0) return;
  if (absl::Status error = FromProto(filled.error()); filling.error.ok()) filling.error = error;
  if (!filling.nodes.empty()) return;
  const std::unique_ptr<Filling> done = std::move(entry->filling);
  const auto lease = LeaseOf(entry, done->lease);
  // Who has gone is not there to be told of a tensor that took another's name.
  if (done->error.ok() && entry->link == Link::kPut) done->error = lease->cancel->status();
  absl::StatusOr<v1::Tensor> tensor =
      End(entry, lease, done->error.ok() ? AccessEnd::kCommitted : AccessEnd::kSpoiled);
  if (!done->error.ok()) tensor = done->error;
  done->reply(std::move(tensor));
}

}  // namespace agmm::catalog
