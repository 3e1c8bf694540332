// The catalog's state: entries and their leases. Creation and the world's events are in catalog.cc,
// access and leases in catalog_leases.cc.
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

namespace agmm::catalog {

// A lease, granted or waiting. Jobs have `granted_fn`, accesses `reply`.
struct Lease {
  uint64_t id = 0;
  LeaseKind kind = LeaseKind::kRead;
  bool granted = false;
  int node = -1;  // the daemon that holds the access
  std::shared_ptr<CancelToken> cancel;  // of who asked for the access
  std::function<void(absl::Status)> granted_fn;
  Reply<v1::BeginAccessResponse> reply;
};

struct Entry {
  v1::Tensor tensor;
  std::vector<int> ranks;
  std::set<int> nodes;
  std::string request_id, request_body;
  std::set<int> placing;  // nodes that have not answered PlaceTensor
  absl::Status place_error;
  std::vector<Reply<v1::Tensor>> creators;
  bool deleted = false;     // unlinked; lives until the last lease ends
  std::list<Lease> leases;  // in admission order
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
  CatalogImpl(Members* members, Placement* placement) : members_(members), placement_(placement) {}

  void CreateTensor(const CallContext& ctx, const v1::CreateTensorRequest& request,
                    Reply<v1::Tensor> reply) override;
  void DeleteTensor(const CallContext&, const v1::DeleteTensorRequest& request,
                    Reply<v1::DeleteTensorResponse> reply) override;
  v1::ListTensorsResponse ListTensors() const override;
  absl::StatusOr<v1::Tensor> GetTensor(const v1::GetTensorRequest& request) const override;
  void FillTensor(const CallContext& ctx, const v1::FillTensorRequest& request,
                  Reply<v1::Tensor> reply) override;
  void BeginAccess(const CallContext&, const v1::BeginAccessRequest& request,
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
  // Null unless the tensor was created and not deleted.
  Entry* FindLinked(uint64_t tensor_id);
  Entry* FindRequest(const std::string& request_id);
  Entry* OfLease(uint64_t lease);
  static std::list<Lease>::iterator LeaseOf(Entry* entry, uint64_t id);
  // False between two generations: nothing may be sent and nothing begins.
  bool Open() const { return !between_ && members_->Complete().ok(); }

  // Takes the reply along when it returns OK.
  absl::Status Create(const CallContext& ctx, const v1::CreateTensorRequest& request,
                      Reply<v1::Tensor>* reply);
  void EndPlacing(Entry* entry);
  // The name is free at once; the entry goes when nothing uses it.
  void Unlink(Entry* entry);
  void Erase(Entry* entry);

  uint64_t Admit(Entry* entry, Lease lease);
  // Ends a lease, and the entry with it if it was the last one of a deleted tensor.
  void Give(Entry* entry, std::list<Lease>::iterator lease);
  void GrantNext(Entry* entry, Callbacks* callbacks);
  static void EndWrite(Entry* entry, bool ready);

  Members* const members_;
  Placement* const placement_;
  std::map<uint64_t, Entry> entries_;
  std::map<std::string, uint64_t> names_, requests_;
  std::map<uint64_t, uint64_t> lease_tensors_;
  std::vector<std::pair<int, uint64_t>>
      drops_;  // node, tensor: to be sent when the world is complete
  bool between_ = false;
  uint64_t next_tensor_ = 1, next_lease_ = 1;
};

}  // namespace agmm::catalog
