// The catalog's state: entries and their leases. Creation and the world's events are in catalog.cc,
// leases in catalog_leases.cc, what opens and ends writes in catalog_puts.cc, fills in
// catalog_fill.cc, what clients have not let go of in catalog_holds.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "daemon/tensor/catalog.h"
#include "kernels/base/clock.h"

namespace agmm::catalog {

// A lease, granted or waiting. Given the lease's id, or why it is not to be had.
using GrantedFn = std::function<void(absl::StatusOr<uint64_t>)>;
struct Lease {
  uint64_t id = 0;  // random: to know it is the right to end it
  LeaseKind kind = LeaseKind::kRead;
  bool granted = false;
  int node = -1;        // the daemon that holds the access; -1: it is none, EndAccess cannot end it
  bool put = false;     // its commit gives the entry its name
  bool held = false;    // of memory that clients have not let go of: ends with its Hold alone
  std::string session;  // ends it as long as it waits
  std::shared_ptr<CancelToken> cancel;                 // of who asked; null: a job
  v1::Tensor::State before = v1::Tensor::STATE_EMPTY;  // what a granted write found
  GrantedFn granted_fn;
};

enum class Link {
  kPut,     // made by a put that is still open: nobody else sees it
  kLinked,  // to be found by its id, and by its name if it has one
  kGone,    // deleted; lives until the last lease ends
};

// A fill in progress.
struct Filling {
  uint64_t lease = 0;
  std::set<int> nodes;  // that have not answered FillShards
  absl::Status error;
  Reply<v1::Tensor> reply;
};

struct Entry {
  v1::Tensor tensor;
  std::vector<int> ranks;
  std::set<int> nodes;
  std::string request_key, request_body;  // of what made it; empty: it had no id
  std::set<int> placing;  // nodes that have not answered PlaceTensor; no lease is granted before
  absl::Status place_error;
  std::vector<Reply<v1::Tensor>> creators;
  Link link = Link::kLinked;
  std::list<Lease> leases;  // in admission order
  std::unique_ptr<Filling> filling;
  int holds = 0;  // its memory counts as held while there are any
};

// Memory of a node that its clients may still have mapped. While nothing may be sent it waits in
// the list; then it is a lease of the tensor that lies there, or of an entry made for it.
struct Hold {
  v1::MemoryHeld memory;
  uint64_t tensor = 0, lease = 0;  // 0: not taken yet
};

inline std::string Describe(const v1::Tensor& tensor) {
  return absl::StrFormat("tensor %d%s", tensor.tensor_id(),
                         tensor.name().empty() ? "" : absl::StrFormat(" \"%s\"", tensor.name()));
}

inline absl::Status NotFound(uint64_t tensor_id) {
  return absl::NotFoundError(
      absl::StrFormat("there is no tensor %d; list the tensors for those that exist", tensor_id));
}

// Calls to the outside may come back into the catalog, so they run once its state is whole again.
class Callbacks {
 public:
  void Add(std::function<void()> call) { calls_.push_back(std::move(call)); }
  ~Callbacks() {
    for (auto& call : calls_) call();
  }

 private:
  std::vector<std::function<void()>> calls_;
};

class CatalogImpl : public Catalog {
 public:
  CatalogImpl(Members* members, Placement* placement, const Clock* clock)
      : members_(members), placement_(placement), clock_(clock) {
    placement_->set_describe_tensors([this](int rank) { return LargestOn(rank); });
  }
  ~CatalogImpl() override { placement_->set_describe_tensors(nullptr); }

  void CreateTensor(const CallContext& ctx, const v1::CreateTensorRequest& request,
                    Reply<v1::Tensor> reply) override;
  absl::StatusOr<uint64_t> CreateAtOnce(const CallContext& ctx,
                                        const v1::CreateTensorRequest& request) override;
  void DeleteTensor(const CallContext&, const v1::DeleteTensorRequest& request,
                    Reply<v1::DeleteTensorResponse> reply) override;
  v1::ListTensorsResponse ListTensors(const v1::ListTensorsRequest& request) const override;
  absl::StatusOr<v1::Tensor> GetTensor(const v1::GetTensorRequest& request) const override;
  void FillTensor(const CallContext& ctx, const v1::FillTensorRequest& request,
                  Reply<v1::Tensor> reply) override;
  void BeginAccess(const CallContext& ctx, const v1::BeginAccessRequest& request,
                   Reply<v1::BeginAccessResponse> reply) override;
  void EndAccess(const CallContext&, const v1::EndAccessRequest& request,
                 Reply<v1::EndAccessResponse> reply) override;
  void EndSession(const std::string& session_id) override;
  void EndAccessesOf(int node) override;

  absl::StatusOr<uint64_t> Resolve(const v1::TensorRef& ref) const override;
  absl::StatusOr<v1::Tensor> Find(uint64_t tensor_id) const override;
  absl::StatusOr<v1::Tensor> Leased(uint64_t lease) const override;
  bool WillHaveContents(uint64_t tensor_id) const override;
  uint64_t Acquire(uint64_t tensor_id, std::function<void(absl::Status)> granted) override;
  void Release(uint64_t lease) override;
  void SetContents(uint64_t tensor_id, bool ready) override;

  void OnGenerationEnded(const std::vector<int>& lost_nodes, const absl::Status& reason) override;
  void OnReady() override;
  void OnReport(int node, const v1::Report& report) override;

 private:
  // Null unless the tensor is there for everybody.
  Entry* FindLinked(uint64_t tensor_id);
  // What `request` made under `key`, its id and what it was for; null: nothing yet. Errors:
  // ALREADY_EXISTS.
  absl::StatusOr<Entry*> FindRequest(const std::string& key,
                                     const v1::CreateTensorRequest& request);
  void RememberRequest(const std::string& key, const v1::CreateTensorRequest& request,
                       Entry* entry);
  Entry* OfLease(uint64_t lease);
  static std::list<Lease>::iterator LeaseOf(Entry* entry, uint64_t id);
  // False between two generations: nothing may be sent and nothing begins.
  bool Open() const { return !between_ && members_->Complete().ok(); }

  // Reserves the space and has the nodes place it. The name is taken at once if it is linked.
  absl::StatusOr<Entry*> Make(const CallContext& ctx, const v1::CreateTensorRequest& request,
                              Link link);
  void EndPlacing(Entry* entry);
  // The name is free at once; the entry goes when nothing uses it.
  void Unlink(Entry* entry);
  void Erase(Entry* entry);
  // Grants what can be granted; then the entry goes if nothing uses it any more.
  void Settle(Entry* entry);

  // The largest tensors with a shard on the rank: "W 1.00 GiB, X 512 MiB, 3 more".
  std::string LargestOn(int rank) const;

  uint64_t Admit(Entry* entry, Lease lease);
  void Give(Entry* entry, std::list<Lease>::iterator lease);
  // Ends one that waits.
  void Refuse(Entry* entry, std::list<Lease>::iterator lease, const absl::Status& why);
  void GrantNext(Entry* entry, Callbacks* callbacks);

  // The entry that a put writes: the one that has its name if it is of the same spec, else a new
  // one. Sets what the lease has of the put.
  absl::StatusOr<Entry*> OpenPut(const CallContext& ctx, const v1::CreateTensorRequest& put,
                                 Lease* lease);
  // Ends a granted lease. The tensor as it is then.
  absl::StatusOr<v1::Tensor> End(Entry* entry, std::list<Lease>::iterator lease, AccessEnd how);
  static void EndWrite(Entry* entry, bool ready);

  absl::StatusOr<Entry*> FillTarget(const CallContext& ctx, const v1::FillTensorRequest& request,
                                    Lease* lease);
  void StartFill(uint64_t lease, const v1::Fill& fill, Reply<v1::Tensor> reply);
  void OnFilled(int node, const v1::TensorFilled& filled);

  void OnHeld(int node, const v1::MemoryHeld& memory);
  void OnReleased(int node, const v1::MemoryReleased& released);
  // The tensor at the place that is held, or a new entry that nobody finds; null: somebody else has
  // it.
  Entry* HeldEntry(const v1::MemoryHeld& memory);
  void TakeHold(Hold* hold);
  // The memory counts as a tensor's again.
  void ForgetHolds(Entry* entry);

  Members* const members_;
  Placement* const placement_;
  const Clock* const clock_;
  std::map<uint64_t, Entry> entries_;
  std::map<std::string, uint64_t> names_, requests_;
  std::map<uint64_t, uint64_t> lease_tensors_;
  std::map<std::pair<int, uint64_t>, Hold> holds_;  // of this generation, by node and the node's id
  std::vector<std::pair<int, uint64_t>>
      drops_;  // node, tensor: to be sent when the world is complete
  bool between_ = false;
  uint64_t next_tensor_ = 1;
};

}  // namespace agmm::catalog
