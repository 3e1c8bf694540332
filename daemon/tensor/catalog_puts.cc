// What opens contents to readers and writers, and ends that: accesses, puts, sessions.
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/tensor/catalog_impl.h"
#include "kernels/base/status.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm::catalog {
namespace {

bool SameSpec(const PlacedTensor& a, const PlacedTensor& b) {
  return a.mesh == b.mesh && a.tensor.sharding == b.tensor.sharding &&
         a.tensor.rows == b.tensor.rows && a.tensor.cols == b.tensor.cols &&
         a.tensor.dtype == b.tensor.dtype;
}

}  // namespace

absl::StatusOr<Entry*> CatalogImpl::OpenPut(const CallContext& ctx,
                                            const v1::CreateTensorRequest& put, Lease* lease) {
  lease->session = put.session_id();
  const std::string key = absl::StrCat("put ", put.request_id());
  AGMM_ASSIGN_OR_RETURN(Entry* const known, FindRequest(key, put));
  if (known != nullptr) {
    lease->put = known->link == Link::kPut;
    return known;
  }
  if (const auto named = names_.find(put.name()); named != names_.end()) {
    AGMM_ASSIGN_OR_RETURN(const PlacedTensor wanted, FromProto(put.spec()));
    Entry* entry = &entries_.at(named->second);
    AGMM_ASSIGN_OR_RETURN(const PlacedTensor found, FromProto(entry->tensor.spec()));
    const bool rewrites = SameSpec(wanted, found);
    AGMM_RETURN_IF_ERROR(CheckOwner(entry->tensor, put.session_id(), /*replaces=*/!rewrites));
    if (rewrites) return entry;
  }
  lease->put = true;
  AGMM_ASSIGN_OR_RETURN(Entry* const made, Make(ctx, put, Link::kPut));
  RememberRequest(key, put, made);
  return made;
}

void CatalogImpl::BeginAccess(const CallContext& ctx, const v1::BeginAccessRequest& request,
                              Reply<v1::BeginAccessResponse> reply) {
  if (absl::Status complete = members_->Complete(); !complete.ok()) return reply(complete);
  if (request.node() < 0 || request.node() >= members_->node_count()) {
    return reply(absl::InvalidArgumentError(
        absl::StrFormat("an access from node %d; the world's are 0 to %d", request.node(),
                        members_->node_count() - 1)));
  }
  if (lease_tensors_.count(request.access_id()) > 0)
    return reply(absl::AlreadyExistsError("the access id is taken; choose another"));
  Lease lease;
  lease.id = request.access_id();
  lease.kind = request.write() || request.has_put() ? LeaseKind::kWrite : LeaseKind::kRead;
  lease.node = request.node();
  lease.cancel = ctx.cancel;
  absl::StatusOr<Entry*> entry = nullptr;
  if (request.has_put()) {
    entry = OpenPut(ctx, request.put(), &lease);
  } else {
    v1::TensorRef ref;
    if (request.target_case() == v1::BeginAccessRequest::kName) ref.set_name(request.name());
    if (request.target_case() == v1::BeginAccessRequest::kTensorId)
      ref.set_tensor_id(request.tensor_id());
    const absl::StatusOr<uint64_t> id = Resolve(ref);
    if (!id.ok()) return reply(id.status());
    entry = FindLinked(*id);
    if (*entry == nullptr) return reply(NotFound(*id));
  }
  if (!entry.ok()) return reply(entry.status());
  lease.granted_fn = [this, reply = std::move(reply)](const absl::StatusOr<uint64_t>& id) {
    if (!id.ok()) return reply(id.status());
    const absl::StatusOr<v1::Tensor> tensor = Leased(*id);
    if (!tensor.ok()) return reply(tensor.status());
    v1::BeginAccessResponse response;
    response.set_access_id(*id);
    *response.mutable_tensor() = *tensor;
    reply(std::move(response));
  };
  Admit(*entry, std::move(lease));
}

void CatalogImpl::EndAccess(const CallContext&, const v1::EndAccessRequest& request,
                            Reply<v1::EndAccessResponse> reply) {
  Entry* entry = OfLease(request.access_id());
  const auto lease =
      entry == nullptr ? std::list<Lease>::iterator() : LeaseOf(entry, request.access_id());
  if (entry == nullptr || lease->node < 0 || lease->node != request.node()) {
    return reply(absl::AbortedError(
        absl::StrFormat("access %016x is not open at node %d: it was never begun, "
                        "or ended with a daemon or its world; repeat the "
                        "whole transfer",
                        request.access_id(), request.node())));
  }
  if (!lease->granted) {
    const v1::Tensor tensor = entry->tensor;  // it may go
    Refuse(entry, lease, absl::CancelledError("who asked for the access has taken that back"));
    v1::EndAccessResponse response;
    *response.mutable_tensor() = tensor;
    return reply(std::move(response));
  }
  const AccessEnd how = request.commit()      ? AccessEnd::kCommitted
                        : request.untouched() ? AccessEnd::kUntouched
                                              : AccessEnd::kSpoiled;
  absl::StatusOr<v1::Tensor> tensor = End(entry, lease, how);
  if (!tensor.ok()) return reply(tensor.status());
  v1::EndAccessResponse response;
  *response.mutable_tensor() = *std::move(tensor);
  reply(std::move(response));
}

absl::StatusOr<v1::Tensor> CatalogImpl::End(Entry* entry, std::list<Lease>::iterator lease,
                                            AccessEnd how) {
  const bool commit = how == AccessEnd::kCommitted;
  absl::Status refusal;
  if (commit && lease->put && entry->link == Link::kGone) {
    refusal = absl::CancelledError(
        absl::StrFormat("the put of %s is void: its session ended before the commit; repeat it in "
                        "a session that is open",
                        Describe(entry->tensor)));
  }
  const bool links = commit && entry->link == Link::kPut;
  const auto old = links ? names_.find(entry->tensor.name()) : names_.end();
  if (old != names_.end()) {
    refusal = CheckOwner(entries_.at(old->second).tensor, entry->tensor.session_id(),
                         /*replaces=*/true);
  }
  if (lease->kind == LeaseKind::kWrite) {
    if (how == AccessEnd::kUntouched) {
      entry->tensor.set_state(lease->before);
    } else {
      EndWrite(entry, commit && refusal.ok());
    }
  }
  if (links && refusal.ok()) {
    entry->link = Link::kLinked;
    const std::string& name = entry->tensor.name();
    // What had the name lives on as long as somebody uses it.
    if (old != names_.end()) Unlink(&entries_.at(old->second));
    if (!name.empty()) names_[name] = entry->tensor.tensor_id();
  }
  v1::Tensor tensor = entry->tensor;
  Give(entry, lease);
  if (!refusal.ok()) return refusal;
  return tensor;
}

void CatalogImpl::EndAccessesOf(int node) {
  // Those that wait go first, so that none of them is granted for the end of another.
  std::deque<uint64_t> ids;
  for (const auto& [id, entry] : entries_) {
    for (const Lease& lease : entry.leases) {
      if (lease.node != node) continue;
      lease.granted ? ids.push_back(lease.id) : ids.push_front(lease.id);
    }
  }
  for (uint64_t id : ids) {
    Entry* entry = OfLease(id);
    if (entry == nullptr) continue;
    const auto lease = LeaseOf(entry, id);
    if (lease->granted) {
      // Whether it had written nobody can say any more.
      End(entry, lease, AccessEnd::kSpoiled).IgnoreError();
    } else {
      Refuse(entry, lease,
             WithReason(
                 absl::AbortedError(absl::StrFormat("node %s, which asked for the access, is gone",
                                                    members_->node_name(node))),
                 kReasonPeerLost));
    }
  }
}

void CatalogImpl::EndSession(const std::string& session_id) {
  if (session_id.empty()) return;
  std::vector<uint64_t> leases, tensors;
  for (const auto& [id, entry] : entries_) {
    if (entry.tensor.session_id() == session_id && entry.link != Link::kGone) tensors.push_back(id);
    for (const Lease& lease : entry.leases)
      if (lease.session == session_id && !lease.granted) leases.push_back(lease.id);
  }
  const absl::Status ended = absl::CancelledError("the session of this put has ended");
  for (uint64_t id : leases) {
    Entry* entry = OfLease(id);
    if (entry != nullptr) Refuse(entry, LeaseOf(entry, id), ended);
  }
  for (uint64_t id : tensors) {
    if (const auto it = entries_.find(id); it != entries_.end() && it->second.link != Link::kGone)
      Unlink(&it->second);
  }
}

void CatalogImpl::EndWrite(Entry* entry, bool ready) {
  entry->tensor.set_state(ready ? v1::Tensor::STATE_READY : v1::Tensor::STATE_EMPTY);
  if (ready) entry->tensor.set_version(entry->tensor.version() + 1);
}

}  // namespace agmm::catalog

namespace agmm {

absl::Status CheckOwner(const v1::Tensor& found, const std::string& session, bool replaces) {
  const bool lasts = found.session_id().empty();
  if (found.session_id() == session || (lasts && !replaces)) return absl::OkStatus();
  if (lasts) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s is of another shape, dtype, sharding or mesh, and lasts: a session "
                        "does not replace it; choose "
                        "another name, or delete it first",
                        catalog::Describe(found)));
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s belongs to another session, of %s, and goes with it; choose another name, or "
      "delete it first",
      catalog::Describe(found), found.owner()));
}

}  // namespace agmm
