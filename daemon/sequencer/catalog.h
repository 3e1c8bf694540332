// The sequencer's record of tensors, and leases on their contents in admission order. Touched on
// the loop only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/link/sequencer_calls.h"
#include "daemon/sequencer/entries.h"
#include "daemon/sequencer/holds.h"
#include "daemon/sequencer/lease_table.h"
#include "daemon/sequencer/members.h"
#include "daemon/sequencer/placement.h"

namespace agmm {

class Catalog : public WorldListener {
 public:
  Catalog(Members* members, Placement* placement);

  // Replies once every node of the mesh knows the tensor.
  void CreateTensor(const CallContext&, const v1::CreateTensorRequest&, Reply<v1::Tensor>);
  // For callers on the loop that continue at once: the tensor exists when this returns, and its
  // leases wait for the nodes. If a node cannot place it, they end with its error and the tensor is
  // deleted. The request id is not remembered.
  absl::StatusOr<uint64_t> CreateAtOnce(const CallContext&, const v1::CreateTensorRequest&);
  void DeleteTensor(const CallContext&, const v1::DeleteTensorRequest&,
                    Reply<v1::DeleteTensorResponse>);
  v1::ListTensorsResponse ListTensors(const v1::ListTensorsRequest& request) const {
    return entries_.List(request);
  }
  absl::StatusOr<v1::Tensor> GetTensor(const v1::GetTensorRequest&) const;
  // Replies once every node has filled its shards. If a node fails, or if the caller is lost by
  // then, the tensor is left empty, or deleted if this call made it; a tensor that had the name
  // keeps it.
  void FillTensor(const CallContext&, const v1::FillTensorRequest&, Reply<v1::Tensor>);
  // Replies when the lease is granted. A put opens the tensor that has its name, if that has the
  // same shape, dtype, sharding and mesh (the owner stays), else a new one. Clients cannot find the
  // new tensor until its commit gives it the name and unlinks the tensor that had it; without a
  // commit it is deleted. CheckOwner must allow this, again at the commit.
  void BeginLease(const CallContext&, const v1::BeginLeaseRequest&, Reply<v1::BeginLeaseResponse>);
  // Cancels a lease that still waits. With `pin`, a granted one becomes a pin.
  void EndLease(const CallContext&, const v1::EndLeaseRequest&, Reply<v1::EndLeaseResponse>);
  // Deletes the session's tensors, and ends its puts: waiting puts at once, the others by refusing
  // their commit.
  void EndSession(const std::string& session_id);

  // Errors: NOT_FOUND; INVALID_ARGUMENT for an empty ref.
  absl::StatusOr<uint64_t> Resolve(const v1::TensorRef& ref) const { return entries_.Resolve(ref); }
  // Errors: NOT_FOUND, also for a deleted tensor that leases keep alive.
  absl::StatusOr<v1::Tensor> Find(uint64_t tensor_id) const;
  // Returns the tensor of a lease, even if it is deleted. Errors: NOT_FOUND.
  absl::StatusOr<v1::Tensor> Leased(uint64_t lease) const;
  // Returns true if the tensor has contents, or an earlier write will produce them.
  bool WillHaveContents(uint64_t tensor_id) const;
  // Takes a job's lease. `granted` runs on the loop, at once or when all earlier conflicting leases
  // have ended; with an error if the generation ends or a node cannot place the tensor. The tensor
  // exists until Release.
  uint64_t Acquire(uint64_t tensor_id, bool writes, std::function<void(absl::Status)> granted);
  void Release(uint64_t lease);
  const LeaseTable& leases() const { return leases_; }
  // Returns, by rank, the memory of tensors that clients may still have mapped.
  std::map<int, int64_t> HeldBytes() const { return entries_.HeldBytes(); }
  // As in Entries.
  std::map<std::string, TensorUse> UseBySession() const { return entries_.UseBySession(); }
  // Called after a job wrote the tensor: makes it READY with a new version, or EMPTY after a failed
  // job.
  void SetContents(uint64_t tensor_id, bool ready);

  void OnGenerationEnded(const std::vector<int>& lost_nodes, const absl::Status& reason) override;
  void OnReady() override;
  void OnReport(int node, const v1::Report& report) override;

 private:
  void OnPlaced(Entry* entry);
  // The name is free at once; the entry is erased when no lease uses it.
  void Unlink(Entry* entry);
  // Grants the leases that can be granted; erases an entry without leases that no client can find.
  void GrantOrErase(Entry* entry);

  uint64_t Admit(Entry* entry, Lease lease);
  // Ends a lease without an effect on the contents.
  void ReleaseLease(const Lease* lease);
  // Ends a waiting lease.
  void Refuse(Lease* lease, const absl::Status& why);
  // Ends a granted lease, or turns it into a pin. Returns the tensor's state at that moment.
  // Errors: NOT_FOUND for a pin of a deleted tensor.
  absl::StatusOr<v1::Tensor> End(Lease* lease, LeaseEnd how, bool pin);
  // The tensor of the pin is deleted.
  void SendEndMappings(const Lease& pin);
  // Returns the entry that the lease is for. Sets the lease's fields for a put.
  absl::StatusOr<Entry*> LeaseTarget(const CallContext& ctx, const v1::BeginLeaseRequest& request,
                                     Lease* lease);
  // Returns the entry that a put writes. Sets the lease's fields for the put.
  absl::StatusOr<Entry*> OpenPut(const CallContext& ctx, const v1::CreateTensorRequest& put,
                                 Lease* lease);
  absl::StatusOr<Entry*> FillTarget(const CallContext& ctx, const v1::FillTensorRequest& request,
                                    Lease* lease);
  void StartFill(const Lease& lease, const v1::Fill& fill, Reply<v1::Tensor> reply);
  void OnFilled(int node, const v1::TensorFilled& filled);

  // A write in progress whose values every node computes itself.
  struct Filling {
    uint64_t lease = 0;
    std::set<int> nodes;  // that have not answered FillShards
    absl::Status error;   // the first
    Reply<v1::Tensor> reply;
  };

  Members* const members_;
  Entries entries_;
  LeaseTable leases_;
  Holds holds_;
  std::map<uint64_t, Filling> fills_;  // by tensor
};

}  // namespace agmm
