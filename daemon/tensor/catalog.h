// The sequencer's record of tensors: ids, places, states, and leases in admission order. On the
// loop only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/call_context.h"
#include "daemon/tensor/placement.h"
#include "daemon/world/members.h"
#include "kernels/base/clock.h"

namespace agmm {

// kJob goes along with kJob: jobs on one tensor run on the same ranks, in launch order.
enum class LeaseKind { kRead, kWrite, kJob };

// What an access leaves: the new contents of a write; what was there before; or, of a write that
// came to no commit, no contents.
enum class AccessEnd { kCommitted, kUntouched, kSpoiled };

// That something of `session` (empty: none) may write `found` by its name; `replaces` it by another
// tensor, or only its contents. Nobody loses what he put with the end of another's session: what
// belongs to a session is written by name in that session alone, and what lasts is not replaced in
// a session. A session may write the contents of what lasts, which goes on lasting. Errors:
// FAILED_PRECONDITION.
absl::Status CheckOwner(const v1::Tensor& found, const std::string& session, bool replaces);

class Catalog : public WorldListener {
 public:
  virtual ~Catalog() = default;
  static std::unique_ptr<Catalog> Create(Members* members, Placement* placement,
                                         const Clock* clock = Clock::Real());

  // Replies once every node of the mesh knows the tensor.
  virtual void CreateTensor(const CallContext&, const v1::CreateTensorRequest&,
                            Reply<v1::Tensor>) = 0;
  // The same for a caller on the loop who goes on at once: the tensor is there when this returns,
  // and its leases wait for the nodes. If one of them cannot place it, they end with its error and
  // the tensor goes. Nothing is kept of the request id.
  virtual absl::StatusOr<uint64_t> CreateAtOnce(const CallContext&,
                                                const v1::CreateTensorRequest&) = 0;
  virtual void DeleteTensor(const CallContext&, const v1::DeleteTensorRequest&,
                            Reply<v1::DeleteTensorResponse>) = 0;
  virtual v1::ListTensorsResponse ListTensors(const v1::ListTensorsRequest&) const = 0;
  virtual absl::StatusOr<v1::Tensor> GetTensor(const v1::GetTensorRequest&) const = 0;
  // Replies once every node has filled its shards. If one fails, the tensor is left empty, or goes
  // if this made it; so it does if the caller has gone by then, and what had the name keeps it.
  virtual void FillTensor(const CallContext&, const v1::FillTensorRequest&, Reply<v1::Tensor>) = 0;
  // Replies when the lease is granted. A put opens the tensor that has its name, if that is of the
  // same shape, dtype, sharding and mesh (which stays whose it is), else a new one: nobody finds
  // that before its commit gives it the name and unlinks what had it; without commit it goes. As
  // CheckOwner allows, also at the commit.
  virtual void BeginAccess(const CallContext&, const v1::BeginAccessRequest&,
                           Reply<v1::BeginAccessResponse>) = 0;
  // Of one that still waits: takes it back.
  virtual void EndAccess(const CallContext&, const v1::EndAccessRequest&,
                         Reply<v1::EndAccessResponse>) = 0;
  // Deletes what belongs to the session, and ends its puts: those that wait at once, the others by
  // refusing their commit.
  virtual void EndSession(const std::string& session_id) = 0;
  // Ends accesses that the daemon `node` holds (its client's bytes will not come any more).
  virtual void EndAccessesOf(int node) = 0;

  // The id that `ref` stands for. Errors: NOT_FOUND, INVALID_ARGUMENT for a ref that names nothing.
  virtual absl::StatusOr<uint64_t> Resolve(const v1::TensorRef& ref) const = 0;
  // For jobs. The tensor as it is. Errors: NOT_FOUND, also when it was deleted and only leases keep
  // it.
  virtual absl::StatusOr<v1::Tensor> Find(uint64_t tensor_id) const = 0;
  // The tensor under a lease, as it is, deleted or not. Errors: NOT_FOUND.
  virtual absl::StatusOr<v1::Tensor> Leased(uint64_t lease) const = 0;
  // True if the tensor has contents, or a write admitted before will bring them.
  virtual bool WillHaveContents(uint64_t tensor_id) const = 0;
  // Takes a kJob lease; `granted` runs on the loop, at once or when all leases admitted before that
  // conflict have ended; with an error when the tensor's world ended or it could not be placed. The
  // tensor lives until Release(lease).
  virtual uint64_t Acquire(uint64_t tensor_id, std::function<void(absl::Status)> granted) = 0;
  virtual void Release(uint64_t lease) = 0;
  // The contents changed (a job wrote them): state READY, a new version; or after a failed job
  // EMPTY.
  virtual void SetContents(uint64_t tensor_id, bool ready) = 0;
};

}  // namespace agmm
