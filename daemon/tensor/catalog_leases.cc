#include <algorithm>
#include <utility>

#include "daemon/tensor/catalog_impl.h"
#include "kernels/base/random.h"

namespace agmm::catalog {

Entry* CatalogImpl::OfLease(uint64_t lease) {
  const auto it = lease_tensors_.find(lease);
  return it == lease_tensors_.end() ? nullptr : &entries_.at(it->second);
}

std::list<Lease>::iterator CatalogImpl::LeaseOf(Entry* entry, uint64_t id) {
  return std::find_if(entry->leases.begin(), entry->leases.end(),
                      [&](const Lease& lease) { return lease.id == id; });
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
  return std::any_of(it->second.leases.begin(), it->second.leases.end(), [](const Lease& lease) {
    return lease.kind == LeaseKind::kWrite && !lease.held;
  });
}

uint64_t CatalogImpl::Acquire(uint64_t tensor_id, std::function<void(absl::Status)> granted) {
  Entry* entry = FindLinked(tensor_id);
  if (entry == nullptr) {
    granted(NotFound(tensor_id));
    return 0;
  }
  Lease lease;
  lease.kind = LeaseKind::kJob;
  lease.granted_fn = [granted = std::move(granted)](const absl::StatusOr<uint64_t>& id) {
    granted(id.status());
  };
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
  if (lease.id == 0) lease.id = RandomId();
  const uint64_t id = lease.id;
  lease_tensors_[id] = entry->tensor.tensor_id();
  entry->leases.push_back(std::move(lease));
  Settle(entry);
  return id;
}

void CatalogImpl::Give(Entry* entry, std::list<Lease>::iterator lease) {
  lease_tensors_.erase(lease->id);
  entry->leases.erase(lease);
  Settle(entry);
}

void CatalogImpl::Refuse(Entry* entry, std::list<Lease>::iterator lease, const absl::Status& why) {
  Callbacks callbacks;
  callbacks.Add([granted = std::move(lease->granted_fn), why] { granted(why); });
  Give(entry, lease);
}

void CatalogImpl::GrantNext(Entry* entry, Callbacks* callbacks) {
  // What waits between two generations is about to end with the first.
  if (!Open() || !entry->placing.empty()) return;
  for (auto lease = entry->leases.begin(); lease != entry->leases.end();) {
    const LeaseKind first = entry->leases.front().kind;
    if (lease != entry->leases.begin() && (lease->kind != first || first == LeaseKind::kWrite))
      return;
    if (lease->granted) {
      ++lease;
      continue;
    }
    // Nobody would end the access of a caller who is gone.
    absl::Status refusal;
    if (lease->cancel != nullptr) refusal = lease->cancel->status();
    if (refusal.ok() && lease->kind == LeaseKind::kRead &&
        entry->tensor.state() != v1::Tensor::STATE_READY) {
      refusal = absl::FailedPreconditionError(
          absl::StrFormat("%s has no contents; write it, or run the job that computes it, first",
                          Describe(entry->tensor)));
    }
    callbacks->Add([granted = std::move(lease->granted_fn), refusal, id = lease->id] {
      refusal.ok() ? granted(id) : granted(refusal);
    });
    if (!refusal.ok()) {
      lease_tensors_.erase(lease->id);
      lease = entry->leases.erase(lease);
      continue;
    }
    lease->granted = true;
    if (lease->kind == LeaseKind::kWrite) {
      lease->before = entry->tensor.state();
      entry->tensor.set_state(v1::Tensor::STATE_WRITING);
    }
    ++lease;
  }
}

}  // namespace agmm::catalog
