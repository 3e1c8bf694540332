// A catalog over a fake world of two nodes with two ranks each.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/sequencer/catalog.h"
#include "gtest/gtest.h"
#include "proto/convert/rpc_status.h"
#include "tests/daemon/fake_members.h"

namespace agmm {

using Access = absl::StatusOr<v1::BeginLeaseResponse>;

constexpr int64_t kHeap = 64 << 10;

// Two nodes with two ranks each.
class CatalogTest : public ::testing::Test {
 protected:
  CatalogTest() : catalog_(std::make_unique<Catalog>(&members_, &placement_)) {
    catalog_->OnReady();
  }

  // The answer, once it has arrived.
  using Created = std::shared_ptr<std::optional<absl::StatusOr<v1::Tensor>>>;
  Created Create(const v1::CreateTensorRequest& request) {
    auto answer = std::make_shared<std::optional<absl::StatusOr<v1::Tensor>>>();
    CallContext ctx;
    ctx.principal = "uid:7";
    catalog_->CreateTensor(ctx, request,
                           [answer](absl::StatusOr<v1::Tensor> t) { *answer = std::move(t); });
    return answer;
  }
  void AnswerPlaced() {
    for (const auto& [node, command] : members_.Take(v1::Command::kPlaceTensor))
      catalog_->OnReport(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
  }
  v1::Tensor Make(const v1::CreateTensorRequest& request) {
    const Created created = Create(request);
    AnswerPlaced();
    EXPECT_TRUE(created->has_value() && (*created)->ok());
    return created->has_value() && (*created)->ok() ? ***created : v1::Tensor();
  }
  v1::Tensor Make(const std::string& name) {
    return Make(TensorRequest(name, "[M_x, K]", 8, 8, MeshOf(4)));
  }
  v1::Tensor MakeReady(const std::string& name) {
    const v1::Tensor tensor = Make(name);
    const auto write = Begin(tensor.tensor_id(), true);
    EXPECT_TRUE(End((**write)->lease_id(), true).ok());
    return *catalog_->Find(tensor.tensor_id());
  }
  using Opened = std::shared_ptr<std::optional<Access>>;
  Opened Begin(uint64_t id, bool write, int node = 0) {
    auto answer = std::make_shared<std::optional<Access>>();
    v1::BeginLeaseRequest request;
    request.set_tensor_id(id);
    request.set_write(write);
    request.set_node(node);
    catalog_->BeginLease({}, request, [answer](Access a) { *answer = std::move(a); });
    return answer;
  }
  Opened Put(const v1::CreateTensorRequest& put, const CallContext& ctx = {}, int node = 0) {
    auto answer = std::make_shared<std::optional<Access>>();
    v1::BeginLeaseRequest request;
    *request.mutable_put() = put;
    request.set_node(node);
    catalog_->BeginLease(ctx, request, [answer](Access a) { *answer = std::move(a); });
    return answer;
  }
  static bool Granted(const Opened& opened) { return opened->has_value() && (*opened)->ok(); }
  static uint64_t AccessOf(const Opened& opened) { return (**opened)->lease_id(); }
  static uint64_t TensorOf(const Opened& opened) { return (**opened)->tensor().tensor_id(); }
  // Returns the id of the tensor with the name; 0 if none has it.
  uint64_t Named(const std::string& name) {
    v1::TensorRef ref;
    ref.set_name(name);
    return catalog_->Resolve(ref).value_or(0);
  }
  absl::StatusOr<v1::Tensor> End(uint64_t access, bool commit, bool untouched = false, int node = 0,
                                 bool pin = false) {
    v1::EndLeaseRequest request;
    request.set_node(node);
    request.set_lease_id(access);
    request.set_commit(commit);
    request.set_untouched(untouched);
    request.set_pin(pin);
    absl::StatusOr<v1::Tensor> answer = absl::UnknownError("no answer");
    catalog_->EndLease({}, request, [&](absl::StatusOr<v1::EndLeaseResponse> response) {
      if (response.ok()) {
        answer = response->tensor();
      } else {
        answer = response.status();
      }
    });
    return answer;
  }
  absl::Status Delete(uint64_t id) {
    v1::DeleteTensorRequest request;
    request.set_tensor_id(id);
    absl::Status answer = absl::UnknownError("no answer");
    catalog_->DeleteTensor(
        {}, request, [&](absl::StatusOr<v1::DeleteTensorResponse> r) { answer = r.status(); });
    return answer;
  }
  // Answers with `error` on node 0.
  void AnswerPlacedWith(const absl::Status& error) {
    for (const auto& [node, command] : members_.Take(v1::Command::kPlaceTensor)) {
      v1::Report report = PlacedReport(command.place_tensor().tensor().tensor_id());
      if (node == 0) *report.mutable_tensor_placed()->mutable_error() = ToProto(error);
      catalog_->OnReport(node, report);
    }
  }
  int64_t Free(int rank = 0) const { return placement_.free_bytes(rank); }

  FakeMembers members_{2, 2, kHeap};
  Placement placement_;
  std::unique_ptr<Catalog> catalog_;
};

}  // namespace agmm
