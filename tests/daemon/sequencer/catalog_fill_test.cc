// Fills at the sequencer.
#include "tests/daemon/sequencer/catalog_fixture.h"

namespace agmm {
namespace {

class CatalogFillTest : public CatalogTest {
 protected:
  Created Fill(const v1::FillTensorRequest& request, const CallContext& ctx = {}) {
    auto answer = std::make_shared<std::optional<absl::StatusOr<v1::Tensor>>>();
    catalog_->FillTensor(ctx, request,
                         [answer](absl::StatusOr<v1::Tensor> t) { *answer = std::move(t); });
    return answer;
  }
  static v1::FillTensorRequest OfTensor(uint64_t id) {
    v1::FillTensorRequest request;
    request.set_tensor_id(id);
    request.mutable_fill()->set_kind(v1::Fill::KIND_UNIFORM);
    request.mutable_fill()->set_seed(5);
    return request;
  }
  static v1::FillTensorRequest OfPut(const std::string& name, int64_t rows) {
    v1::FillTensorRequest request = OfTensor(0);
    *request.mutable_put() = TensorRequest(name, "[M_x, K]", rows, 8, MeshOf(4));
    return request;
  }
  void AnswerFilled(const absl::Status& on_node_0 = absl::OkStatus()) {
    for (const auto& [node, command] : members_.Take(v1::Command::kFillShards)) {
      EXPECT_EQ(command.fill_shards().fill().seed(), 5u);
      Filled(node, command.fill_shards().tensor_id(), node == 0 ? on_node_0 : absl::OkStatus());
    }
  }
  void Filled(int node, uint64_t id, const absl::Status& error = absl::OkStatus()) {
    v1::Report report;
    report.mutable_tensor_filled()->set_tensor_id(id);
    *report.mutable_tensor_filled()->mutable_error() = ToProto(error);
    catalog_->OnReport(node, report);
  }
};

TEST_F(CatalogFillTest, AFillWaitsForItsTurnAndAnswersOnceEveryNodeHasFilled) {
  const uint64_t id = Make("A").tensor_id();
  const uint64_t job = catalog_->Acquire(id, true, [](const absl::Status&) {});
  const Created fill = Fill(OfTensor(id));
  EXPECT_TRUE(catalog_->WillHaveContents(id));
  EXPECT_TRUE(members_.Take(v1::Command::kFillShards).empty());
  catalog_->Release(job);
  const auto read = Begin(id, false);
  ASSERT_EQ(members_.sent.size(), 2u);
  Filled(0, id);
  Filled(0, id);
  EXPECT_FALSE(fill->has_value() || read->has_value());
  Filled(1, id);
  ASSERT_TRUE(fill->has_value() && (*fill)->ok());
  EXPECT_EQ((**fill)->state(), v1::Tensor::STATE_READY);
  EXPECT_EQ((**fill)->version(), 1u);
  EXPECT_TRUE(Granted(read));
}

TEST_F(CatalogFillTest, AFillInASessionDoesNotReplaceAPermanentTensor) {
  const uint64_t id = MakeReady("A").tensor_id();
  v1::FillTensorRequest request = OfPut("A", 16);
  request.mutable_put()->set_session_id("s1");
  const Created fill = Fill(request);
  ASSERT_TRUE(fill->has_value());
  EXPECT_TRUE(absl::IsFailedPrecondition((*fill)->status())) << (*fill)->status();
  EXPECT_EQ(Named("A"), id);
}

TEST_F(CatalogFillTest, AFillCreatesATensorOrReplacesOneOfAnotherSpec) {
  const Created first = Fill(OfPut("A", 8));
  AnswerPlaced();
  EXPECT_EQ(Named("A"), 0u);
  AnswerFilled();
  ASSERT_TRUE(first->has_value() && (*first)->ok());
  const uint64_t old = (**first)->tensor_id();
  EXPECT_EQ(Named("A"), old);
  const Created same = Fill(OfPut("A", 8));
  AnswerFilled();
  EXPECT_EQ((**same)->tensor_id(), old);
  EXPECT_EQ((**same)->version(), 2u);
  const Created other = Fill(OfPut("A", 256));
  AnswerPlaced();
  AnswerFilled();
  ASSERT_TRUE(other->has_value() && (*other)->ok());
  EXPECT_EQ(Named("A"), (**other)->tensor_id());
  EXPECT_FALSE(catalog_->Find(old).ok());
}

TEST_F(CatalogFillTest, AFailedFillEmptiesTheTensorOrDeletesANewOne) {
  const uint64_t id = MakeReady("A").tensor_id();
  const absl::Status error = absl::InternalError("no such shard");
  const Created fill = Fill(OfTensor(id));
  AnswerFilled(error);
  ASSERT_TRUE(fill->has_value());
  EXPECT_EQ((*fill)->status(), error);
  EXPECT_EQ(catalog_->Find(id)->state(), v1::Tensor::STATE_EMPTY);
  const int64_t left = Free();
  const Created put = Fill(OfPut("B", 8));
  AnswerPlaced();
  AnswerFilled(error);
  EXPECT_EQ((*put)->status(), error);
  EXPECT_EQ(Named("B"), 0u);
  EXPECT_EQ(Free(), left);
}

TEST_F(CatalogFillTest, TheSpaceOfADeletedTensorIsFreedAfterItsLastFill) {
  const uint64_t id = Make("A").tensor_id();
  const Created fill = Fill(OfTensor(id));
  EXPECT_TRUE(Delete(id).ok());
  EXPECT_LT(Free(), kHeap);
  Filled(0, id);
  EXPECT_LT(Free(), kHeap);
  EXPECT_TRUE(members_.Take(v1::Command::kDropTensor).empty());
  Filled(1, id);
  EXPECT_TRUE(fill->has_value());
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogFillTest, AFillEndsWithItsGeneration) {
  const uint64_t id = MakeReady("A").tensor_id();
  const Created fill = Fill(OfTensor(id)), waiting = Fill(OfTensor(id));
  const absl::Status reason = absl::AbortedError("node n1 was lost");
  catalog_->OnGenerationEnded({}, reason);
  ASSERT_TRUE(fill->has_value() && waiting->has_value());
  EXPECT_EQ((*fill)->status(), reason);
  EXPECT_EQ((*waiting)->status(), reason);
  EXPECT_EQ(catalog_->Find(id)->state(), v1::Tensor::STATE_EMPTY);
  catalog_->OnReady();
  Filled(0, id);  // has no meaning any more
  EXPECT_TRUE(Granted(Begin(id, true)));
}

TEST_F(CatalogFillTest, AFillWhoseCallerLeftBeforeItsTurnIsDropped) {
  const uint64_t id = MakeReady("A").tensor_id();
  const uint64_t job = catalog_->Acquire(id, true, [](const absl::Status&) {});
  CallContext gone;
  const Created fill = Fill(OfTensor(id), gone);
  gone.cancel->Cancel(absl::CancelledError("hung up"));
  catalog_->Release(job);
  EXPECT_TRUE(absl::IsCancelled((*fill)->status()));
  EXPECT_TRUE(members_.Take(v1::Command::kFillShards).empty());
  EXPECT_EQ(catalog_->Find(id)->state(), v1::Tensor::STATE_READY);
}

TEST_F(CatalogFillTest, ANewTensorOfALostCallerIsDeletedAndTheNameStays) {
  const uint64_t old = MakeReady("A").tensor_id();
  const int64_t left = Free();
  CallContext gone;
  const Created fill = Fill(OfPut("A", 256), gone);
  AnswerPlaced();
  gone.cancel->Cancel(absl::CancelledError("hung up"));
  AnswerFilled();
  ASSERT_TRUE(fill->has_value());
  EXPECT_TRUE(absl::IsCancelled((*fill)->status())) << (*fill)->status();
  EXPECT_EQ(Named("A"), old);
  EXPECT_EQ(catalog_->Find(old)->state(), v1::Tensor::STATE_READY);
  EXPECT_EQ(Free(), left);
  // A tensor filled in place has the new values.
  const Created same = Fill(OfTensor(old), gone);
  EXPECT_TRUE(absl::IsCancelled((*same)->status()));
  CallContext late;
  const Created begun = Fill(OfTensor(old), late);
  late.cancel->Cancel(absl::CancelledError("hung up"));
  const uint64_t version = catalog_->Find(old)->version();
  AnswerFilled();
  EXPECT_TRUE((*begun)->ok());
  EXPECT_EQ(catalog_->Find(old)->version(), version + 1);
}

TEST_F(CatalogFillTest, AnAccessCannotEndAFill) {
  const uint64_t id = Make("A").tensor_id();
  const auto before = Begin(id, true);
  const uint64_t access = AccessOf(before);
  ASSERT_TRUE(End(access, true).ok());
  Fill(OfTensor(id));
  EXPECT_TRUE(absl::IsAborted(End(access + 1, true).status()));
  EXPECT_EQ(catalog_->Find(id)->state(), v1::Tensor::STATE_WRITING);
}

TEST_F(CatalogFillTest, AnInvalidFillIsRefusedAtOnce) {
  EXPECT_TRUE(absl::IsNotFound((*Fill(OfTensor(99)))->status()));
  const uint64_t id = Make("A").tensor_id();
  v1::FillTensorRequest request = OfTensor(id);
  request.mutable_fill()->clear_kind();
  EXPECT_TRUE(absl::IsInvalidArgument((*Fill(request))->status()));
  request = OfPut("B", 8);
  request.mutable_fill()->clear_kind();
  const int64_t left = Free();
  EXPECT_TRUE(absl::IsInvalidArgument((*Fill(request))->status()));
  EXPECT_EQ(Free(), left);
}

}  // namespace
}  // namespace agmm
