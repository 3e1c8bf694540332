#include <algorithm>
#include <deque>
#include <utility>

#include "daemon/tensor/catalog_impl.h"
#include "proto/convert/status.h"

namespace agmm::catalog {

Entry* CatalogImpl::OfLease(uint64_t lease) {
  const auto it = lease_tensors_.find(lease);
  return it == lease_tensors_.end() ? nullptr : &entries_.at(it->second);
}

std::list<Lease>::iterator CatalogImpl::LeaseOf(Entry* entry, uint64_t id) {
  return std::find_if(entry->leases.begin(), entry->leases.end(),
                      [&](const Lease& lease) { return lease.id == id; });
}

void CatalogImpl::BeginAccess(const CallContext& ctx, const v1::BeginAccessRequest& request,
                              Reply<v1::BeginAccessResponse> reply) {
  if (absl::Status complete = members_->Complete(); !complete.ok()) return reply(complete);
  Entry* entry = FindLinked(request.tensor_id());
  if (entry == nullptr) return reply(NotFound(request.tensor_id()));
  Lease lease;
  lease.kind = request.write() ? LeaseKind::kWrite : LeaseKind::kRead;
  lease.node = request.node();
  lease.cancel = ctx.cancel;
  lease.reply = std::move(reply);
  Admit(entry, std::move(lease));
}

void CatalogImpl::EndAccess(const CallContext&, const v1::EndAccessRequest& request,
                            Reply<v1::EndAccessResponse> reply) {
  Entry* entry = OfLease(request.access_id());
  const auto lease =
      entry == nullptr ? std::list<Lease>::iterator() : LeaseOf(entry, request.access_id());
  if (entry == nullptr || !lease->granted || lease->kind == LeaseKind::kJob) {
    return reply(
        absl::AbortedError(absl::StrFormat("access %d is not open: it was never begun, or ended "
                                           "with a daemon or its world; repeat the "
                                           "whole transfer",
                                           request.access_id())));
  }
  if (lease->kind == LeaseKind::kWrite) EndWrite(entry, request.commit());
  v1::EndAccessResponse response;
  *response.mutable_tensor() = entry->tensor;
  Give(entry, lease);
  reply(std::move(response));
}

void CatalogImpl::EndAccessesOf(int node) {
  // Those that wait go first, so that none of them is granted for the end of another.
  std::deque<uint64_t> ids;
  for (const auto& [id, entry] : entries_) {
    for (const Lease& lease : entry.leases) {
      if (lease.kind == LeaseKind::kJob || lease.node != node) continue;
      lease.granted ? ids.push_back(lease.id) : ids.push_front(lease.id);
    }
  }
  for (uint64_t id : ids) {
    Entry* entry = OfLease(id);
    if (entry == nullptr) continue;
    const auto lease = LeaseOf(entry, id);
    Reply<v1::BeginAccessResponse> waiting;
    if (!lease->granted) waiting = std::move(lease->reply);
    if (lease->granted && lease->kind == LeaseKind::kWrite) EndWrite(entry, false);
    Give(entry, lease);
    if (waiting) {
      waiting(WithReason(
          absl::AbortedError(absl::StrFormat("node %s, which asked for the access, is gone",
                                             members_->node_name(node))),
          kReasonPeerLost));
    }
  }
}

absl::StatusOr<v1::Tensor> CatalogImpl::Leased(uint64_t lease) const {
  const auto it = lease_tensors_.find(lease);
  if (it == lease_tensors_.end())
    return absl::NotFoundError(absl::StrFormat("lease %d has ended", lease));
  return entries_.at(it->second).tensor;
}

bool CatalogImpl::WillHaveContents(uint64_t tensor_id) const {
  const auto it = entries_.find(tensor_id);
  if (it == entries_.end()) return false;
  if (it->second.tensor.state() == v1::Tensor::STATE_READY) return true;
  return std::any_of(it->second.leases.begin(), it->second.leases.end(),
                     [](const Lease& lease) { return lease.kind == LeaseKind::kWrite; });
}

uint64_t CatalogImpl::Acquire(uint64_t tensor_id, std::function<void(absl::Status)> granted) {
  Entry* entry = FindLinked(tensor_id);
  if (entry == nullptr) {
    granted(NotFound(tensor_id));
    return 0;
  }
  Lease lease;
  lease.kind = LeaseKind::kJob;
  lease.granted_fn = std::move(granted);
  return Admit(entry, std::move(lease));
}

void CatalogImpl::Release(uint64_t lease) {
  // A lease that ended with its world is given back by its job all the same.
  if (Entry* entry = OfLease(lease); entry != nullptr) Give(entry, LeaseOf(entry, lease));
}

void CatalogImpl::SetContents(uint64_t tensor_id, bool ready) {
  if (const auto it = entries_.find(tensor_id); it != entries_.end()) EndWrite(&it->second, ready);
}

uint64_t CatalogImpl::Admit(Entry* entry, Lease lease) {
  const uint64_t id = next_lease_++;
  lease.id = id;
  lease_tensors_[id] = entry->tensor.tensor_id();
  entry->leases.push_back(std::move(lease));
  Callbacks callbacks;
  GrantNext(entry, &callbacks);
  return id;
}

void CatalogImpl::Give(Entry* entry, std::list<Lease>::iterator lease) {
  Callbacks callbacks;
  lease_tensors_.erase(lease->id);
  entry->leases.erase(lease);
  GrantNext(entry, &callbacks);
  if (entry->deleted && entry->leases.empty() && entry->placing.empty()) Erase(entry);
}

void CatalogImpl::GrantNext(Entry* entry, Callbacks* callbacks) {
  // What waits now is about to end with its generation.
  if (!Open()) return;
  for (auto lease = entry->leases.begin(); lease != entry->leases.end();) {
    const LeaseKind first = entry->leases.front().kind;
    if (lease != entry->leases.begin() && (lease->kind != first || first == LeaseKind::kWrite))
      return;
    if (lease->granted) {
      ++lease;
      continue;
    }
    lease->granted = true;
    if (lease->kind == LeaseKind::kJob) {
      callbacks->Add([granted = std::move(lease->granted_fn)] { granted(absl::OkStatus()); });
      ++lease;
      continue;
    }
    // Nobody would end the access of a caller who is gone.
    absl::Status refusal = lease->cancel->status();
    if (refusal.ok() && lease->kind == LeaseKind::kRead &&
        entry->tensor.state() != v1::Tensor::STATE_READY) {
      refusal = absl::FailedPreconditionError(
          absl::StrFormat("%s has no contents; write it, or run the job that computes it, first",
                          Describe(entry->tensor)));
    }
    if (!refusal.ok()) {
      callbacks->Add([reply = std::move(lease->reply), refusal] { reply(refusal); });
      lease_tensors_.erase(lease->id);
      lease = entry->leases.erase(lease);
      continue;
    }
    if (lease->kind == LeaseKind::kWrite) entry->tensor.set_state(v1::Tensor::STATE_WRITING);
    v1::BeginAccessResponse response;
    response.set_access_id(lease->id);
    *response.mutable_tensor() = entry->tensor;
    callbacks->Add([reply = std::move(lease->reply), response] { reply(response); });
    ++lease;
  }
}

void CatalogImpl::EndWrite(Entry* entry, bool ready) {
  entry->tensor.set_state(ready ? v1::Tensor::STATE_READY : v1::Tensor::STATE_EMPTY);
  if (ready) entry->tensor.set_version(entry->tensor.version() + 1);
}

}  // namespace agmm::catalog
