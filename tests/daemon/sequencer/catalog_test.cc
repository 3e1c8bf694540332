#include "gmock/gmock.h"
#include "kernels/base/reason.h"
#include "tests/daemon/sequencer/catalog_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(CatalogTest, CreationIsAnsweredOnceAllNodesHavePlacedTheTensor) {
  const Created created = Create(TensorRequest("A", "[M_x, K]", 8, 8, MeshOf(4)));
  const auto placed = members_.Take(v1::Command::kPlaceTensor);
  ASSERT_EQ(placed.size(), 2u);
  const v1::Tensor& sent = placed[0].command.place_tensor().tensor();
  catalog_->OnReport(0, PlacedReport(sent.tensor_id()));
  EXPECT_FALSE(created->has_value());
  catalog_->OnReport(1, PlacedReport(sent.tensor_id()));
  ASSERT_TRUE(created->has_value() && (*created)->ok());
  const v1::Tensor tensor = ***created;
  EXPECT_EQ(tensor.state(), v1::Tensor::STATE_EMPTY);
  EXPECT_EQ(tensor.owner(), "uid:7");
  EXPECT_EQ(tensor.shard_bytes(), 2 * 128);
  EXPECT_EQ(catalog_->Find(tensor.tensor_id())->name(), "A");
}

TEST_F(CatalogTest, OnlyNodesOfTheMeshReceiveCommands) {
  Create(TensorRequest("A", "[M_x, K]", 8, 8, MeshOf(2, 2)));
  const auto placed = members_.Take(v1::Command::kPlaceTensor);
  ASSERT_EQ(placed.size(), 1u);
  EXPECT_EQ(placed[0].node, 1);
  EXPECT_EQ(Free(0), kHeap);
  EXPECT_LT(Free(2), kHeap);
}

TEST_F(CatalogTest, ANodeThatCannotPlaceFailsTheCreationAndFreesTheSpace) {
  const Created created = Create(TensorRequest("A", "[M_x, K]", 8, 8, MeshOf(4)));
  const uint64_t id =
      members_.Take(v1::Command::kPlaceTensor)[0].command.place_tensor().tensor().tensor_id();
  v1::Report report = PlacedReport(id);
  *report.mutable_tensor_placed()->mutable_error() =
      ToProto(absl::OutOfRangeError("no such place"));
  catalog_->OnReport(0, report);
  EXPECT_FALSE(created->has_value());
  catalog_->OnReport(1, PlacedReport(id));
  ASSERT_TRUE(created->has_value());
  EXPECT_EQ((*created)->status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(Free(), kHeap);
  EXPECT_EQ(members_.Take(v1::Command::kDropTensor).size(), 2u);
  EXPECT_NE(Make("A").tensor_id(), id);
}

TEST_F(CatalogTest, ATakenNameIsRefusedNamingItsTensor) {
  const v1::Tensor tensor = Make("A");
  const Created again = Create(TensorRequest("A", "[M, K]", 4, 4, MeshOf(2)));
  ASSERT_TRUE(again->has_value());
  EXPECT_EQ((*again)->status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string((*again)->status().message()),
              HasSubstr("tensor " + std::to_string(tensor.tensor_id()) + " \"A\""));
}

TEST_F(CatalogTest, TensorsWithoutNameDoNotClash) {
  EXPECT_NE(Make("").tensor_id(), Make("").tensor_id());
}

TEST_F(CatalogTest, ARepeatedRequestReturnsTheSameTensor) {
  v1::CreateTensorRequest request = TensorRequest("A", "[M_x, K]", 8, 8, MeshOf(4));
  request.set_request_id("r1");
  const Created first = Create(request), second = Create(request);
  AnswerPlaced();
  ASSERT_TRUE(first->has_value() && second->has_value());
  EXPECT_EQ((**first)->tensor_id(), (**second)->tensor_id());
  const Created third = Create(request);
  EXPECT_EQ((**third)->tensor_id(), (**first)->tensor_id());
  request.mutable_spec()->set_rows(16);
  EXPECT_EQ((*Create(request))->status().code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(CatalogTest, AMeshOutsideTheWorldIsRefused) {
  const absl::Status status =
      (*Create(TensorRequest("A", "[M_x, K]", 8, 8, MeshOf(4, 1))))->status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 4"));
}

TEST_F(CatalogTest, AnIncompleteWorldIsReported) {
  members_.complete = WithReason(absl::UnavailableError("n1 is missing"), kReasonWorldIncomplete);
  EXPECT_EQ(ReasonOf((*Create(TensorRequest("A", "[M, K]", 8, 8, MeshOf(2))))->status()),
            kReasonWorldIncomplete);
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogTest, ATensorThatDoesNotFitIsRefused) {
  EXPECT_EQ(ReasonOf((*Create(TensorRequest("A", "[M, K]", 1024, 1024, MeshOf(2))))->status()),
            kReasonHeapFull);
}

TEST_F(CatalogTest, AWriteThatIsCommittedMakesTheTensorReady) {
  const v1::Tensor tensor = Make("A");
  EXPECT_FALSE(catalog_->WillHaveContents(tensor.tensor_id()));
  const auto write = Begin(tensor.tensor_id(), true);
  ASSERT_TRUE(write->has_value() && (*write)->ok());
  EXPECT_EQ((**write)->tensor().state(), v1::Tensor::STATE_WRITING);
  EXPECT_TRUE(catalog_->WillHaveContents(tensor.tensor_id()));
  const auto ended = End((**write)->lease_id(), true);
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->state(), v1::Tensor::STATE_READY);
  EXPECT_EQ(ended->version(), 1u);
}

TEST_F(CatalogTest, AWriteThatIsNotCommittedLeavesTheTensorEmpty) {
  const v1::Tensor tensor = MakeReady("A");
  const auto write = Begin(tensor.tensor_id(), true);
  EXPECT_EQ(End((**write)->lease_id(), false)->state(), v1::Tensor::STATE_EMPTY);
  EXPECT_FALSE(catalog_->WillHaveContents(tensor.tensor_id()));
}

TEST_F(CatalogTest, ReadsShareAndAWriteWaitsForThem) {
  const v1::Tensor tensor = MakeReady("A");
  const auto read1 = Begin(tensor.tensor_id(), false), read2 = Begin(tensor.tensor_id(), false);
  const auto write = Begin(tensor.tensor_id(), true);
  const auto read3 = Begin(tensor.tensor_id(), false);
  ASSERT_TRUE(read1->has_value() && read2->has_value());
  EXPECT_FALSE(write->has_value() || read3->has_value());
  ASSERT_TRUE(End((**read1)->lease_id(), false).ok());
  EXPECT_FALSE(write->has_value());
  ASSERT_TRUE(End((**read2)->lease_id(), false).ok());
  ASSERT_TRUE(write->has_value());
  EXPECT_FALSE(read3->has_value());
  ASSERT_TRUE(End((**write)->lease_id(), true).ok());
  ASSERT_TRUE(read3->has_value() && (*read3)->ok());
  EXPECT_EQ((**read3)->tensor().version(), 2u);
}

TEST_F(CatalogTest, JobsShareWithJobsOnly) {
  const v1::Tensor tensor = MakeReady("A");
  int granted = 0;
  const auto grant = [&](absl::Status status) { granted += status.ok(); };
  const uint64_t job1 = catalog_->Acquire(tensor.tensor_id(), true, grant);
  const uint64_t job2 = catalog_->Acquire(tensor.tensor_id(), true, grant);
  EXPECT_EQ(granted, 2);
  const auto read = Begin(tensor.tensor_id(), false);
  const uint64_t job3 = catalog_->Acquire(tensor.tensor_id(), true, grant);
  EXPECT_FALSE(read->has_value());
  EXPECT_EQ(granted, 2);
  catalog_->Release(job1);
  catalog_->Release(job2);
  ASSERT_TRUE(read->has_value());
  EXPECT_EQ(granted, 2);
  ASSERT_TRUE(End((**read)->lease_id(), false).ok());
  EXPECT_EQ(granted, 3);
  catalog_->Release(job3);
}

TEST_F(CatalogTest, JobsThatOnlyReadShareWithReaders) {
  const uint64_t id = MakeReady("A").tensor_id();
  std::vector<int> granted;
  const auto acquire = [&](int number, bool writes) {
    return catalog_->Acquire(id, writes, [&granted, number](const absl::Status& status) {
      if (status.ok()) granted.push_back(number);
    });
  };
  const Opened read1 = Begin(id, false);
  const uint64_t job1 = acquire(1, false);
  const Opened read2 = Begin(id, false);
  EXPECT_TRUE(Granted(read2));
  EXPECT_THAT(granted, ElementsAre(1));
  // A job that writes waits for readers, and not for the other job; it is not overtaken.
  const uint64_t job2 = acquire(2, true);
  const Opened read3 = Begin(id, false);
  const uint64_t job3 = acquire(3, false);
  EXPECT_THAT(granted, ElementsAre(1));
  EXPECT_TRUE(End(AccessOf(read1), false).ok());
  EXPECT_THAT(granted, ElementsAre(1));
  EXPECT_TRUE(End(AccessOf(read2), false).ok());
  EXPECT_THAT(granted, ElementsAre(1, 2));
  EXPECT_FALSE(read3->has_value());
  catalog_->Release(job2);
  // The first job still reads.
  EXPECT_TRUE(Granted(read3));
  EXPECT_THAT(granted, ElementsAre(1, 2, 3));
  // A write waits for all of them.
  const Opened write = Begin(id, true);
  catalog_->Release(job1);
  EXPECT_TRUE(End(AccessOf(read3), false).ok());
  EXPECT_FALSE(write->has_value());
  catalog_->Release(job3);
  EXPECT_TRUE(Granted(write));
}

TEST_F(CatalogTest, AReadOfAnEmptyTensorIsRefusedInAdmissionOrder) {
  const v1::Tensor tensor = MakeReady("A");
  const auto write = Begin(tensor.tensor_id(), true);
  const auto read = Begin(tensor.tensor_id(), false);
  const auto write2 = Begin(tensor.tensor_id(), true);
  ASSERT_TRUE(End((**write)->lease_id(), false).ok());
  ASSERT_TRUE(read->has_value());
  EXPECT_EQ((*read)->status().code(), absl::StatusCode::kFailedPrecondition);
  // Its lease is returned.
  EXPECT_TRUE(write2->has_value());
}

TEST_F(CatalogTest, ADeletedTensorFreesItsNameAtOnceAndItsSpaceWithTheLastLease) {
  const v1::Tensor tensor = MakeReady("A");
  const int64_t left = Free();
  const uint64_t job = catalog_->Acquire(tensor.tensor_id(), true, [](absl::Status) {});
  EXPECT_TRUE(Delete(tensor.tensor_id()).ok());
  EXPECT_EQ(catalog_->Find(tensor.tensor_id()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(catalog_->Leased(job)->tensor_id(), tensor.tensor_id());
  EXPECT_EQ(Delete(tensor.tensor_id()).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Free(), left);
  Make("A");
  EXPECT_LT(Free(), left);
  EXPECT_TRUE(members_.Take(v1::Command::kDropTensor).empty());
  catalog_->Release(job);
  EXPECT_EQ(Free(), left);
  EXPECT_EQ(members_.Take(v1::Command::kDropTensor).size(), 2u);
  EXPECT_FALSE(catalog_->Leased(job).ok());
}

TEST_F(CatalogTest, TheEndOfASessionDeletesItsTensors) {
  v1::CreateTensorRequest request = TensorRequest("A", "[M_x, K]", 8, 8, MeshOf(4));
  request.set_session_id("s1");
  Make(request);
  const uint64_t kept = Make("B").tensor_id();
  request.set_name("C");
  const Created creating = Create(request);
  catalog_->EndSession("s1");
  AnswerPlaced();
  ASSERT_TRUE(creating->has_value());
  EXPECT_FALSE((*creating)->ok());
  const v1::ListTensorsResponse all = catalog_->ListTensors({});
  ASSERT_EQ(all.tensors_size(), 1);
  EXPECT_EQ(all.tensors(0).tensor_id(), kept);
  EXPECT_EQ(Free(), kHeap - 4096);
}

TEST_F(CatalogTest, TensorsAreListedInPagesThatEndWithTheLastOne) {
  std::vector<uint64_t> made, listed;
  for (const char* name : {"A", "B", "C", "D", "E"}) made.push_back(Make(name).tensor_id());
  ASSERT_TRUE(Delete(made[1]).ok());
  made.erase(made.begin() + 1);
  v1::ListTensorsRequest request;
  request.set_page_size(2);
  for (int page = 0; page < 2; ++page) {
    const v1::ListTensorsResponse response = catalog_->ListTensors(request);
    ASSERT_EQ(response.tensors_size(), 2);
    for (const v1::Tensor& tensor : response.tensors()) listed.push_back(tensor.tensor_id());
    EXPECT_EQ(response.next_after_tensor_id(), page == 0 ? made[1] : 0);
    request.set_after_tensor_id(response.next_after_tensor_id());
  }
  EXPECT_EQ(listed, made);
  // A page token of a deleted tensor is valid.
  request.set_after_tensor_id(made[1]);
  ASSERT_TRUE(Delete(made[1]).ok());
  EXPECT_EQ(catalog_->ListTensors(request).tensors(0).tensor_id(), made[2]);
}

TEST_F(CatalogTest, AnAccessIsNotGrantedToALostCaller) {
  const v1::Tensor tensor = MakeReady("A");
  const auto write = Begin(tensor.tensor_id(), true);
  CallContext gone;
  absl::StatusOr<v1::BeginLeaseResponse> answer = absl::UnknownError("no answer");
  v1::BeginLeaseRequest request;
  request.set_tensor_id(tensor.tensor_id());
  request.set_write(true);
  catalog_->BeginLease(gone, request, [&](Access access) { answer = std::move(access); });
  gone.cancel->Cancel(absl::CancelledError("hung up"));
  const auto read = Begin(tensor.tensor_id(), false);
  ASSERT_TRUE(End((**write)->lease_id(), true).ok());
  EXPECT_EQ(answer.status().message(), "hung up");
  EXPECT_TRUE(read->has_value());
}

TEST_F(CatalogTest, AJobsLeaseIsNoAccess) {
  const v1::Tensor tensor = MakeReady("A");
  const uint64_t job = catalog_->Acquire(tensor.tensor_id(), true, [](absl::Status) {});
  EXPECT_EQ(End(job, true).status().code(), absl::StatusCode::kAborted);
}

TEST_F(CatalogTest, AJobChangesContentsAndVersion) {
  const v1::Tensor tensor = Make("C");
  catalog_->SetContents(tensor.tensor_id(), true);
  EXPECT_EQ(catalog_->Find(tensor.tensor_id())->state(), v1::Tensor::STATE_READY);
  EXPECT_EQ(catalog_->Find(tensor.tensor_id())->version(), 1u);
  catalog_->SetContents(tensor.tensor_id(), false);
  EXPECT_EQ(catalog_->Find(tensor.tensor_id())->state(), v1::Tensor::STATE_EMPTY);
}

}  // namespace
}  // namespace agmm
