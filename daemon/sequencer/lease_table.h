// Leases on the contents of tensors, granted and waiting, in the order of admission. Touched on the
// loop only.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/base/cancel.h"

namespace agmm {

// Jobs share a tensor under kJob leases, because jobs on one tensor run on the same ranks, in
// launch order.
enum class LeaseKind { kRead, kWrite, kJob };

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
  std::function<void(absl::StatusOr<uint64_t>)> on_granted;  // with the id, or the refusal
};

class LeaseTable {
 public:
  // Adds a lease after the others on its tensor, or before them if it is a hold, which is granted.
  Lease* Add(Lease lease);
  Lease* Find(uint64_t id) const;
  void Erase(const Lease* lease);
  // Returns the next lease on the tensor that is compatible with the granted ones, or null.
  Lease* NextToGrant(uint64_t tensor);
  void Grant(Lease* lease);
  // Returns a granted lease on the same tensor that `waiting` waits for, preferably a job's; null
  // if nothing is granted.
  const Lease* HolderBefore(const Lease& waiting) const;
  bool IsLeased(uint64_t tensor) const { return rows_.count(tensor) > 0; }
  // Returns true if a write, granted or waiting, will produce contents.
  bool WillBeWritten(uint64_t tensor) const;
  // Returns the ids of the leases that `match`, on each tensor the last one first, so that none of
  // them is granted while they are ended in this order.
  std::vector<uint64_t> Select(const std::function<bool(const Lease&)>& match) const;

 private:
  using Leases = std::list<Lease>;
  // The granted leases of a tensor come first.
  struct Row {
    Leases leases;
    Leases::iterator waiting = leases.end();  // the first lease that is not granted
    int granted[3] = {0, 0, 0};               // by kind
  };
  std::map<uint64_t, Row> rows_;  // by tensor; without empty ones
  absl::flat_hash_map<uint64_t, Leases::iterator> by_id_;
};

}  // namespace agmm
