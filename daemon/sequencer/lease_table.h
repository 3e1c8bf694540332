// Leases on the contents of tensors, granted and waiting, in the order of admission. Touched on the
// loop only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/base/cancel.h"
#include "kernels/base/random.h"

namespace agmm {

// Jobs share a tensor, because jobs on one tensor run on the same ranks, in launch order. Those
// that only read it share it with other readers, too. A pin keeps the memory, and delays no lease.
enum class LeaseKind { kRead, kWrite, kJobRead, kJobWrite, kPin };
inline constexpr int kLeaseKinds = 5;

inline bool IsJob(LeaseKind kind) {
  return kind == LeaseKind::kJobRead || kind == LeaseKind::kJobWrite;
}

// Returns true if two leases on a tensor can be granted at the same time.
inline bool CanShare(LeaseKind a, LeaseKind b) {
  if (a == LeaseKind::kPin || b == LeaseKind::kPin || (IsJob(a) && IsJob(b))) return true;
  const auto reads = [](LeaseKind k) { return k == LeaseKind::kRead || k == LeaseKind::kJobRead; };
  return reads(a) && reads(b);
}

struct Lease {
  uint64_t id = 0;  // random, because anyone who knows it can end the lease; 0: Add chooses it
  uint64_t tensor = 0;
  LeaseKind kind = LeaseKind::kRead;
  bool granted = false;
  int node = -1;        // the node that holds it; -1: none, and EndLease cannot end it
  bool put = false;     // its commit gives the tensor its name
  bool held = false;    // for memory that clients may still have mapped; ends with its hold only
  std::string session;  // its end also ends the lease if that still waits
  std::shared_ptr<CancelToken> cancel;                 // the caller's; null: a job
  v1::Tensor::State before = v1::Tensor::STATE_EMPTY;  // the tensor's state before a granted write
  std::function<void(absl::Status)> on_granted;        // with OK, or the refusal
};

class LeaseTable {
 public:
  // Adds a lease after the others on its tensor, or before them if it is a hold, which is granted.
  Lease* Add(Lease lease) {
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
  Lease* Find(uint64_t id) const {
    const auto it = by_id_.find(id);
    return it == by_id_.end() ? nullptr : &*it->second;
  }
  void Erase(const Lease* lease) {
    const auto it = by_id_.find(lease->id)->second;
    const uint64_t tensor = lease->tensor;
    Row& row = rows_.at(tensor);
    if (lease->granted) --row.granted[static_cast<int>(lease->kind)];
    if (row.waiting == it) ++row.waiting;
    by_id_.erase(lease->id);
    row.leases.erase(it);
    if (row.leases.empty()) rows_.erase(tensor);
  }
  // Returns the next lease on the tensor that is compatible with the granted ones, or null.
  Lease* NextToGrant(uint64_t tensor) {
    const auto it = rows_.find(tensor);
    if (it == rows_.end() || it->second.waiting == it->second.leases.end()) return nullptr;
    const Row& row = it->second;
    Lease* next = &*row.waiting;
    for (int kind = 0; kind < kLeaseKinds; ++kind) {
      if (row.granted[kind] > 0 && !CanShare(next->kind, static_cast<LeaseKind>(kind)))
        return nullptr;
    }
    return next;
  }
  void Grant(Lease* lease) {
    Row& row = rows_.at(lease->tensor);
    lease->granted = true;
    ++row.granted[static_cast<int>(lease->kind)];
    ++row.waiting;
  }
  // Turns a granted lease into a pin with the same id.
  void Pin(Lease* lease) {
    Row& row = rows_.at(lease->tensor);
    --row.granted[static_cast<int>(lease->kind)];
    lease->kind = LeaseKind::kPin;
    ++row.granted[static_cast<int>(lease->kind)];
  }
  // Returns a granted lease on the same tensor that `waiting` waits for: preferably one that it
  // cannot share the tensor with, and then a job's. Null if none is granted.
  const Lease* HolderBefore(const Lease& waiting) const {
    const Row& row = rows_.at(waiting.tensor);
    const Lease* holder = nullptr;
    int best = -1;
    for (auto it = row.leases.begin(); it != row.waiting; ++it) {
      if (it->kind == LeaseKind::kPin) continue;
      const int rank = 2 * !CanShare(it->kind, waiting.kind) + IsJob(it->kind);
      if (rank <= best) continue;
      best = rank;
      holder = &*it;
    }
    return holder;
  }
  bool IsLeased(uint64_t tensor) const { return rows_.count(tensor) > 0; }
  // Returns true if a write, granted or waiting, will produce contents.
  bool WillBeWritten(uint64_t tensor) const {
    const auto it = rows_.find(tensor);
    if (it == rows_.end()) return false;
    const Leases& leases = it->second.leases;
    return std::any_of(leases.begin(), leases.end(), [](const Lease& lease) {
      return lease.kind == LeaseKind::kWrite && !lease.held;
    });
  }
  std::vector<const Lease*> PinsOf(uint64_t tensor) const {
    std::vector<const Lease*> pins;
    if (const auto it = rows_.find(tensor); it != rows_.end()) {
      for (const Lease& lease : it->second.leases)
        if (lease.kind == LeaseKind::kPin) pins.push_back(&lease);
    }
    return pins;
  }
  // Returns the first waiting lease on the tensor, which has leases; null if all are granted.
  const Lease* FirstWaiting(uint64_t tensor) const {
    const Row& row = rows_.at(tensor);
    return row.waiting == row.leases.end() ? nullptr : &*row.waiting;
  }
  // Returns the ids of the leases that `match`, on each tensor the last one first, so that none of
  // them is granted while they are ended in this order.
  std::vector<uint64_t> Select(const std::function<bool(const Lease&)>& match) const {
    std::vector<uint64_t> ids;
    for (const auto& [tensor, row] : rows_) {
      for (const Lease& lease : row.leases) {
        if (match(lease)) ids.push_back(lease.id);
      }
    }
    std::reverse(ids.begin(), ids.end());
    return ids;
  }

 private:
  using Leases = std::list<Lease>;
  // The granted leases of a tensor come first.
  struct Row {
    Leases leases;
    Leases::iterator waiting = leases.end();  // the first lease that is not granted
    int granted[kLeaseKinds] = {};            // by kind
  };
  std::map<uint64_t, Row> rows_;  // by tensor; without empty ones
  absl::flat_hash_map<uint64_t, Leases::iterator> by_id_;
};

}  // namespace agmm
