// Puts: which rewrite, which replace, and that a put without a commit leaves nothing.
#include <set>

#include "gmock/gmock.h"
#include "kernels/base/reason.h"
#include "tests/daemon/sequencer/catalog_fixture.h"

namespace agmm {
namespace {

class CatalogPutsTest : public CatalogTest {
 protected:
  // Two different specs under one name.
  static v1::CreateTensorRequest Small(const std::string& name = "A") {
    return TensorRequest(name, "[M_x, K]", 8, 8, MeshOf(4));
  }
  static v1::CreateTensorRequest Large(const std::string& name = "A") {
    return TensorRequest(name, "[M_x, K]", 256, 8, MeshOf(4));
  }
  static v1::CreateTensorRequest OfSession(const std::string& session,
                                           v1::CreateTensorRequest request) {
    request.set_session_id(session);
    return request;
  }
  Opened PutPlaced(const v1::CreateTensorRequest& request) {
    const Opened put = Put(request);
    AnswerPlaced();
    EXPECT_TRUE(Granted(put));
    return put;
  }
};

TEST_F(CatalogPutsTest, APutOfAFreeNameIsGrantedOncePlacedAndNamedByItsCommit) {
  const Opened put = Put(Small());
  EXPECT_FALSE(put->has_value());
  EXPECT_LT(Free(), kHeap);
  AnswerPlaced();
  ASSERT_TRUE(Granted(put));
  const uint64_t id = TensorOf(put);
  EXPECT_EQ((**put)->tensor().state(), v1::Tensor::STATE_WRITING);
  EXPECT_EQ(Named("A"), 0u);
  EXPECT_FALSE(catalog_->Find(id).ok());
  EXPECT_EQ(catalog_->ListTensors({}).tensors_size(), 0);
  const auto committed = End(AccessOf(put), true);
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->state(), v1::Tensor::STATE_READY);
  EXPECT_EQ(committed->version(), 1u);
  EXPECT_EQ(Named("A"), id);
}

TEST_F(CatalogPutsTest, APutWithoutNameMakesATensor) {
  const Opened put = PutPlaced(Small(""));
  ASSERT_TRUE(End(AccessOf(put), true).ok());
  EXPECT_TRUE(catalog_->Find(TensorOf(put)).ok());
  const Opened other = PutPlaced(Small(""));
  EXPECT_NE(TensorOf(other), TensorOf(put));
}

TEST_F(CatalogPutsTest, APutOfTheSameSpecRewritesInAdmissionOrder) {
  const v1::Tensor tensor = MakeReady("A");
  const int64_t left = Free();
  const uint64_t job = catalog_->Acquire(tensor.tensor_id(), true, [](const absl::Status&) {});
  const Opened put = Put(Small());
  EXPECT_FALSE(put->has_value());
  EXPECT_EQ(Free(), left);
  catalog_->Release(job);
  ASSERT_TRUE(Granted(put));
  EXPECT_EQ(TensorOf(put), tensor.tensor_id());
  EXPECT_EQ(End(AccessOf(put), true)->version(), 2u);
}

TEST_F(CatalogPutsTest, ARewriteThatIsNotCommittedLeavesTheTensorEmpty) {
  const uint64_t id = MakeReady("A").tensor_id();
  const Opened put = Put(Small());
  ASSERT_TRUE(Granted(put));
  ASSERT_TRUE(End(AccessOf(put), false).ok());
  EXPECT_EQ(Named("A"), id);
  EXPECT_EQ(catalog_->Find(id)->state(), v1::Tensor::STATE_EMPTY);
}

TEST_F(CatalogPutsTest, AnUntouchedRewriteLeavesTheTensorAsItWas) {
  const v1::Tensor before = MakeReady("A");
  const uint64_t job = catalog_->Acquire(before.tensor_id(), true, [](const absl::Status&) {});
  const Opened put = Put(Small());
  catalog_->Release(job);
  ASSERT_TRUE(Granted(put));
  const Opened reader = Begin(before.tensor_id(), false);
  const auto tensor = End(AccessOf(put), false, /*untouched=*/true);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->state(), v1::Tensor::STATE_READY);
  EXPECT_EQ(tensor->version(), before.version());
  EXPECT_TRUE(Granted(reader));
}

TEST_F(CatalogPutsTest, AnUntouchedWriteOfAnEmptyTensorLeavesItEmpty) {
  const uint64_t id = Make("A").tensor_id();
  const Opened write = Begin(id, true);
  ASSERT_TRUE(Granted(write));
  EXPECT_EQ(End(AccessOf(write), false, /*untouched=*/true)->state(), v1::Tensor::STATE_EMPTY);
}

TEST_F(CatalogPutsTest, AnotherDtypeShardingOrMeshIsAnotherSpec) {
  const uint64_t id = MakeReady("A").tensor_id();
  for (const v1::CreateTensorRequest& request :
       {TensorRequest("A", "[M_x, K]", 8, 8, MeshOf(4), v1::DTYPE_BF16),
        TensorRequest("A", "[M, K_x]", 8, 8, MeshOf(4)),
        TensorRequest("A", "[M_x, K]", 8, 8, MeshOf(2))}) {
    const Opened put = PutPlaced(request);
    EXPECT_NE(TensorOf(put), id);
    ASSERT_TRUE(End(AccessOf(put), false).ok());
  }
  // Names of dimensions do not matter.
  const Opened put = Put(TensorRequest("A", "[K_x, N]", 8, 8, MeshOf(4)));
  ASSERT_TRUE(Granted(put));
  EXPECT_EQ(TensorOf(put), id);
}

TEST_F(CatalogPutsTest, APutOverANameInUseSwapsOnCommit) {
  const uint64_t old = MakeReady("A").tensor_id();
  const uint64_t job = catalog_->Acquire(old, true, [](const absl::Status&) {});
  const Opened put = PutPlaced(Large());  // does not wait for the job
  const uint64_t id = TensorOf(put);
  EXPECT_NE(id, old);
  EXPECT_EQ(Named("A"), old);
  EXPECT_EQ(catalog_->Find(old)->state(), v1::Tensor::STATE_READY);
  ASSERT_TRUE(End(AccessOf(put), true).ok());
  EXPECT_EQ(Named("A"), id);
  // The job keeps the tensor with which it was admitted; the last user frees it.
  EXPECT_FALSE(catalog_->Find(old).ok());
  EXPECT_EQ(catalog_->Leased(job)->tensor_id(), old);
  EXPECT_EQ(catalog_->Leased(job)->state(), v1::Tensor::STATE_READY);
  const int64_t left = Free();
  EXPECT_TRUE(members_.Take(v1::Command::kDropTensor).empty());
  catalog_->Release(job);
  EXPECT_EQ(Free(), left + 4096);
  const auto dropped = members_.Take(v1::Command::kDropTensor);
  ASSERT_EQ(dropped.size(), 2u);
  EXPECT_EQ(dropped[0].command.drop_tensor().tensor_id(), old);
}

TEST_F(CatalogPutsTest, ASwapBringsNoContentsToTheOldTensor) {
  const uint64_t old = Make("A").tensor_id();
  const Opened put = PutPlaced(Large());
  EXPECT_FALSE(catalog_->WillHaveContents(old));
  const Opened rewrite = Put(Small());
  EXPECT_TRUE(catalog_->WillHaveContents(old));
}

TEST_F(CatalogPutsTest, OfTwoReplacementsTheLastCommitWins) {
  const Opened first = PutPlaced(Small()), second = PutPlaced(Large());
  ASSERT_TRUE(End(AccessOf(second), true).ok());
  EXPECT_EQ(Named("A"), TensorOf(second));
  ASSERT_TRUE(End(AccessOf(first), true).ok());
  EXPECT_EQ(Named("A"), TensorOf(first));
  EXPECT_EQ(catalog_->ListTensors({}).tensors_size(), 1);
  EXPECT_EQ(Free(), kHeap - 4096);
  EXPECT_TRUE(Delete(TensorOf(first)).ok());
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogPutsTest, APutThatIsNotCommittedLeavesNothing) {
  const uint64_t old = MakeReady("A").tensor_id();
  const int64_t left = Free();
  const Opened put = PutPlaced(Large());
  ASSERT_TRUE(End(AccessOf(put), false).ok());
  EXPECT_EQ(Named("A"), old);
  EXPECT_EQ(Free(), left);
  EXPECT_EQ(members_.Take(v1::Command::kDropTensor).size(), 2u);
}

TEST_F(CatalogPutsTest, APutEndsWithItsGeneration) {
  const Opened open = PutPlaced(Small()), placing = Put(Large("B"));
  const absl::Status reason = absl::AbortedError("node n1 was lost");
  catalog_->OnGenerationEnded({}, reason);
  ASSERT_TRUE(placing->has_value());
  EXPECT_EQ((*placing)->status(), reason);
  EXPECT_TRUE(absl::IsAborted(End(AccessOf(open), true).status()));
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogPutsTest, APutWhoseCallerLeftLeavesNothing) {
  CallContext gone;
  const Opened put = Put(Large(), gone);
  gone.cancel->Cancel(absl::CancelledError("hung up"));
  AnswerPlaced();
  ASSERT_TRUE(put->has_value());
  EXPECT_EQ((*put)->status().message(), "hung up");
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogPutsTest, ANodeThatCannotPlaceFailsThePut) {
  const Opened put = Put(Large());
  AnswerPlacedWith(absl::OutOfRangeError("no such place"));
  ASSERT_TRUE(put->has_value());
  EXPECT_TRUE(absl::IsOutOfRange((*put)->status()));
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogPutsTest, APutThatDoesNotFitSaysSoAtOnce) {
  const Opened put = Put(TensorRequest("A", "[M, K]", 1024, 1024, MeshOf(2)));
  ASSERT_TRUE(put->has_value());
  EXPECT_EQ(ReasonOf((*put)->status()), kReasonHeapFull);
}

TEST_F(CatalogPutsTest, TheEndOfASessionEndsItsPuts) {
  v1::CreateTensorRequest request = Large();
  request.set_session_id("s1");
  const uint64_t other = MakeReady("W").tensor_id();
  const uint64_t job = catalog_->Acquire(other, true, [](const absl::Status&) {});
  v1::CreateTensorRequest rewrite = Small("W");
  rewrite.set_session_id("s1");
  const Opened waiting = Put(rewrite), open = PutPlaced(request);
  request.set_name("B");
  const Opened placing = Put(request);
  catalog_->EndSession("s1");
  ASSERT_TRUE(waiting->has_value() && placing->has_value());
  EXPECT_TRUE(absl::IsCancelled((*waiting)->status()));
  EXPECT_TRUE(absl::IsCancelled((*placing)->status()));
  AnswerPlaced();
  // Its daemon may still be writing there, so the space is freed with the access.
  EXPECT_LT(Free(), kHeap - 4096);
  EXPECT_TRUE(absl::IsCancelled(End(AccessOf(open), true).status()));
  EXPECT_EQ(Named("A"), 0u);
  EXPECT_EQ(Free(), kHeap - 4096);
  // The tensor to be rewritten does not belong to that session.
  catalog_->Release(job);
  EXPECT_EQ(catalog_->Find(other)->state(), v1::Tensor::STATE_READY);
}

TEST_F(CatalogPutsTest, ATensorThatWasPutEndsWithItsSession) {
  v1::CreateTensorRequest request = Small();
  request.set_session_id("s1");
  ASSERT_TRUE(End(AccessOf(PutPlaced(request)), true).ok());
  catalog_->EndSession("s1");
  EXPECT_EQ(Named("A"), 0u);
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogPutsTest, ASessionDoesNotReplaceAPermanentTensor) {
  const uint64_t id = MakeReady("A").tensor_id();
  const Opened put = Put(OfSession("s1", Large()));
  ASSERT_TRUE(put->has_value());
  EXPECT_TRUE(absl::IsFailedPrecondition((*put)->status())) << (*put)->status();
  EXPECT_THAT(
      (*put)->status().message(),
      testing::AllOf(testing::HasSubstr("\"A\""), testing::HasSubstr("a session cannot replace it"),
                     testing::HasSubstr("another name, or delete it first")));
  EXPECT_EQ(Free(), kHeap - 4096);
  catalog_->EndSession("s1");
  EXPECT_EQ(Named("A"), id);
}

TEST_F(CatalogPutsTest, ASessionMayRewriteAPermanentTensorWhichStaysPermanent) {
  const uint64_t id = MakeReady("A").tensor_id();
  const Opened put = Put(OfSession("s1", Small()));
  ASSERT_TRUE(Granted(put));
  EXPECT_EQ(End(AccessOf(put), true)->version(), 2u);
  catalog_->EndSession("s1");
  EXPECT_EQ(Named("A"), id);
  EXPECT_EQ(catalog_->Find(id)->state(), v1::Tensor::STATE_READY);
}

TEST_F(CatalogPutsTest, ATensorOfASessionIsPutOnlyWithinThatSession) {
  ASSERT_TRUE(End(AccessOf(PutPlaced(OfSession("s1", Small()))), true).ok());
  const uint64_t id = Named("A");
  for (const char* other : {"", "s2"}) {
    for (const v1::CreateTensorRequest& request : {Small(), Large()}) {
      const Opened put = Put(OfSession(other, request));
      ASSERT_TRUE(put->has_value());
      EXPECT_TRUE(absl::IsFailedPrecondition((*put)->status())) << (*put)->status();
      EXPECT_THAT((*put)->status().message(), testing::HasSubstr("belongs to another session"));
    }
  }
  // An id is allowed in any session.
  const Opened write = Begin(id, true);
  ASSERT_TRUE(Granted(write));
  ASSERT_TRUE(End(AccessOf(write), true).ok());
  ASSERT_TRUE(End(AccessOf(PutPlaced(OfSession("s1", Large()))), true).ok());
  EXPECT_NE(Named("A"), id);
}

TEST_F(CatalogPutsTest, ANameTakenByAnotherOwnerBeforeTheCommitIsKept) {
  const Opened mine = PutPlaced(OfSession("s1", Large())), lasting = PutPlaced(Small());
  ASSERT_TRUE(End(AccessOf(lasting), true).ok());
  const absl::Status refused = End(AccessOf(mine), true).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(Named("A"), TensorOf(lasting));
  EXPECT_EQ(catalog_->Find(TensorOf(lasting))->state(), v1::Tensor::STATE_READY);
  EXPECT_EQ(Free(), kHeap - 4096);
}

TEST_F(CatalogPutsTest, AnAccessByNameOpensTheTensorThatHasTheNameNow) {
  v1::BeginLeaseRequest request;
  request.set_name("A");
  absl::StatusOr<v1::BeginLeaseResponse> answer = absl::UnknownError("no answer");
  const auto begin = [&] { catalog_->BeginLease({}, request, [&](Access a) { answer = a; }); };
  begin();
  EXPECT_TRUE(absl::IsNotFound(answer.status()));
  const uint64_t id = MakeReady("A").tensor_id();
  begin();
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->tensor().tensor_id(), id);
  request.set_name("");
  begin();
  EXPECT_TRUE(absl::IsInvalidArgument(answer.status()));
}

TEST_F(CatalogPutsTest, APutThatIsRepeatedMakesOneTensor) {
  v1::CreateTensorRequest request = Small("");
  request.set_request_id("r");
  const Opened first = PutPlaced(request);
  ASSERT_TRUE(End(AccessOf(first), true).ok());
  const Opened again = Put(request);
  ASSERT_TRUE(Granted(again));
  EXPECT_EQ(TensorOf(again), TensorOf(first));
  EXPECT_EQ(End(AccessOf(again), true)->version(), 2u);
  EXPECT_EQ(catalog_->ListTensors({}).tensors_size(), 1);
  request.set_session_id("s1");
  EXPECT_TRUE(absl::IsAlreadyExists((*Put(request))->status()));
  // A put without a commit is forgotten.
  request.set_request_id("other");
  ASSERT_TRUE(End(AccessOf(PutPlaced(request)), false).ok());
  EXPECT_TRUE(End(AccessOf(PutPlaced(request)), true).ok());
}

TEST_F(CatalogPutsTest, OnlyTheHoldingNodeCanEndAnAccess) {
  const uint64_t id = MakeReady("A").tensor_id();
  const Opened write = Begin(id, true, 1);
  ASSERT_TRUE(Granted(write));
  EXPECT_TRUE(absl::IsAborted(End(AccessOf(write), true).status()));
  EXPECT_EQ(catalog_->Find(id)->state(), v1::Tensor::STATE_WRITING);
  EXPECT_TRUE(End(AccessOf(write), true, /*untouched=*/false, /*node=*/1).ok());
}

TEST_F(CatalogPutsTest, IdsOfAccessesAreUnpredictable) {
  const uint64_t id = MakeReady("A").tensor_id();
  std::set<uint64_t> ids;
  for (int i = 0; i < 8; ++i) ids.insert(AccessOf(Begin(id, false)));
  EXPECT_EQ(ids.size(), 8u);
  EXPECT_GT(*ids.rbegin() - *ids.begin(), uint64_t{1} << 32);
}

TEST_F(CatalogPutsTest, AWaitingAccessIsWithdrawnByItsId) {
  const uint64_t id = MakeReady("A").tensor_id();
  const Opened reader = Begin(id, false);
  ASSERT_TRUE(Granted(reader));
  v1::BeginLeaseRequest request;
  request.set_tensor_id(id);
  request.set_write(true);
  request.set_lease_id(77);
  absl::Status waiting;
  catalog_->BeginLease({}, request, [&](const Access& a) { waiting = a.status(); });
  absl::Status taken;
  catalog_->BeginLease({}, request, [&](const Access& a) { taken = a.status(); });
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  const Opened behind = Begin(id, false);
  EXPECT_FALSE(behind->has_value());
  ASSERT_TRUE(End(77, false, /*untouched=*/true).ok());
  EXPECT_TRUE(absl::IsCancelled(waiting)) << waiting;
  EXPECT_TRUE(Granted(behind));
  EXPECT_EQ(catalog_->Find(id)->state(), v1::Tensor::STATE_READY);
}

TEST_F(CatalogPutsTest, AnAccessFromNoNodeIsRefused) {
  const uint64_t id = MakeReady("A").tensor_id();
  for (int node : {-1, 2}) {
    const Opened access = Begin(id, false, node);
    ASSERT_TRUE(access->has_value());
    EXPECT_TRUE(absl::IsInvalidArgument((*access)->status()));
  }
}

}  // namespace
}  // namespace agmm
