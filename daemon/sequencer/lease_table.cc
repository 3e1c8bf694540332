#include "daemon/sequencer/lease_table.h"

#include <algorithm>
#include <utility>

#include "kernels/base/random.h"

namespace agmm {

Lease* LeaseTable::Add(Lease lease) {
  if (lease.id == 0) lease.id = RandomId();
  Row& row = rows_[lease.tensor];
  Leases::iterator added;
  if (lease.held) {
    added = row.leases.insert(row.leases.begin(), std::move(lease));
    ++row.granted[static_cast<int>(added->kind)];
  } else {
    added = row.leases.insert(row.leases.end(), std::move(lease));
    if (row.waiting == row.leases.end()) row.waiting = added;
  }
  by_id_[added->id] = added;
  return &*added;
}

Lease* LeaseTable::Find(uint64_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : &*it->second;
}

void LeaseTable::Erase(const Lease* lease) {
  const auto it = by_id_.find(lease->id)->second;
  const uint64_t tensor = lease->tensor;
  Row& row = rows_.at(tensor);
  if (lease->granted) --row.granted[static_cast<int>(lease->kind)];
  if (row.waiting == it) ++row.waiting;
  by_id_.erase(lease->id);
  row.leases.erase(it);
  if (row.leases.empty()) rows_.erase(tensor);
}

Lease* LeaseTable::NextToGrant(uint64_t tensor) {
  const auto it = rows_.find(tensor);
  if (it == rows_.end() || it->second.waiting == it->second.leases.end()) return nullptr;
  const Row& row = it->second;
  Lease* next = &*row.waiting;
  const int all = row.granted[0] + row.granted[1] + row.granted[2];
  const int same = next->kind == LeaseKind::kWrite ? 0 : row.granted[static_cast<int>(next->kind)];
  return same == all ? next : nullptr;
}

void LeaseTable::Grant(Lease* lease) {
  Row& row = rows_.at(lease->tensor);
  lease->granted = true;
  ++row.granted[static_cast<int>(lease->kind)];
  ++row.waiting;
}

const Lease* LeaseTable::HolderBefore(const Lease& waiting) const {
  const Row& row = rows_.at(waiting.tensor);
  const auto job = std::find_if(row.leases.begin(), Leases::const_iterator(row.waiting),
                                [](const Lease& lease) { return lease.kind == LeaseKind::kJob; });
  if (job != row.waiting) return &*job;
  return row.leases.begin() == row.waiting ? nullptr : &row.leases.front();
}

bool LeaseTable::WillBeWritten(uint64_t tensor) const {
  const auto it = rows_.find(tensor);
  if (it == rows_.end()) return false;
  const Leases& leases = it->second.leases;
  return std::any_of(leases.begin(), leases.end(), [](const Lease& lease) {
    return lease.kind == LeaseKind::kWrite && !lease.held;
  });
}

std::vector<uint64_t> LeaseTable::Select(const std::function<bool(const Lease&)>& match) const {
  std::vector<uint64_t> ids;
  for (const auto& [tensor, row] : rows_) {
    for (const Lease& lease : row.leases) {
      if (match(lease)) ids.push_back(lease.id);
    }
  }
  std::reverse(ids.begin(), ids.end());
  return ids;
}

}  // namespace agmm
