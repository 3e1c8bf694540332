// Tensors that exist before their nodes have placed them, such as a job's C.
#include "gmock/gmock.h"
#include "kernels/base/reason.h"
#include "tests/daemon/sequencer/catalog_fixture.h"

namespace agmm {
namespace {

class CatalogCreateTest : public CatalogTest {
 protected:
  uint64_t CreateAtOnce(const std::string& name) {
    CallContext ctx;
    ctx.principal = "uid:7";
    const absl::StatusOr<uint64_t> id =
        catalog_->CreateAtOnce(ctx, TensorRequest(name, "[M_x, K]", 8, 8, MeshOf(4)));
    EXPECT_TRUE(id.ok()) << id.status();
    return id.value_or(0);
  }
};

TEST_F(CatalogCreateTest, LeasesOfATensorCreatedAtOnceWaitForItsNodes) {
  const uint64_t id = CreateAtOnce("C");
  EXPECT_EQ(Named("C"), id);
  ASSERT_TRUE(catalog_->Find(id).ok());
  EXPECT_EQ(catalog_->Find(id)->owner(), "uid:7");
  int granted = 0;
  const auto grant = [&](const absl::Status& status) { granted += status.ok(); };
  const uint64_t job1 = catalog_->Acquire(id, true, grant),
                 job2 = catalog_->Acquire(id, true, grant);
  EXPECT_EQ(granted, 0);
  AnswerPlaced();
  EXPECT_EQ(granted, 2);
  catalog_->Release(job1);
  catalog_->Release(job2);
  EXPECT_TRUE(Delete(id).ok());
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogCreateTest, AGetAfterASubmitSeesItsC) {
  const uint64_t id = CreateAtOnce("C");
  const uint64_t job = catalog_->Acquire(id, true, [](const absl::Status&) {});
  const auto get = Begin(Named("C"), false);
  AnswerPlaced();
  EXPECT_FALSE(get->has_value());
  catalog_->SetContents(id, true);
  catalog_->Release(job);
  ASSERT_TRUE(Granted(get));
  EXPECT_EQ((**get)->tensor().version(), 1u);
}

TEST_F(CatalogCreateTest, ANodeThatCannotPlaceEndsTheLeasesThatWait) {
  const uint64_t id = CreateAtOnce("C");
  absl::Status job;
  const uint64_t lease =
      catalog_->Acquire(id, true, [&](const absl::Status& status) { job = status; });
  const auto get = Begin(id, false);
  const absl::Status error = absl::OutOfRangeError("no such place");
  AnswerPlacedWith(error);
  EXPECT_EQ(job, error);
  ASSERT_TRUE(get->has_value());
  EXPECT_EQ((*get)->status(), error);
  catalog_->Release(lease);
  EXPECT_EQ(Named("C"), 0u);
  EXPECT_EQ(Free(), kHeap);
  EXPECT_EQ(members_.Take(v1::Command::kDropTensor).size(), 2u);
}

TEST_F(CatalogCreateTest, ATensorDeletedBeforeItsPlacementStillServesItsJob) {
  const uint64_t id = CreateAtOnce("C");
  bool granted = false;
  const uint64_t job =
      catalog_->Acquire(id, true, [&](const absl::Status& status) { granted = status.ok(); });
  EXPECT_TRUE(Delete(id).ok());
  EXPECT_EQ(Named("C"), 0u);
  AnswerPlaced();
  EXPECT_TRUE(granted);
  EXPECT_LT(Free(), kHeap);
  catalog_->Release(job);
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogCreateTest, ATensorBeingPlacedEndsWithItsGeneration) {
  const uint64_t id = CreateAtOnce("C");
  absl::Status job;
  catalog_->Acquire(id, true, [&](const absl::Status& status) { job = status; });
  const absl::Status reason = absl::AbortedError("node n1 was lost");
  catalog_->OnGenerationEnded({}, reason);
  EXPECT_EQ(job, reason);
  EXPECT_FALSE(catalog_->Find(id).ok());
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogCreateTest, AMeshOfTwoKindsOfDeviceIsRefusedByItsRanks) {
  std::vector<WorldRank>& ranks = members_.mutable_ranks();
  for (WorldRank& rank : ranks) rank.kind = "cpu";
  ranks[2].kind = ranks[3].kind = "cuda";
  const auto create = [&](int count, int first) {
    return catalog_->CreateAtOnce({}, TensorRequest("B", "[M_x, K]", 8, 8, MeshOf(count, first)))
        .status();
  };
  const absl::Status refused = create(3, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_EQ(
      refused.message(),
      "mesh x=3 has devices of two kinds: rank 1 is cpu and rank 2 is cuda; take ranks of one "
      "kind");
  EXPECT_TRUE(create(2, 2).ok());
}

TEST_F(CatalogCreateTest, ANameInUseAndAFullHeapAreReportedAtOnce) {
  Make("A");
  EXPECT_TRUE(absl::IsAlreadyExists(
      catalog_->CreateAtOnce({}, TensorRequest("A", "[M, K]", 4, 4, MeshOf(2))).status()));
  EXPECT_EQ(
      ReasonOf(
          catalog_->CreateAtOnce({}, TensorRequest("B", "[M, K]", 1024, 1024, MeshOf(2))).status()),
      kReasonHeapFull);
}

TEST_F(CatalogCreateTest, TheTimeOfCreationIsKept) {
  const int64_t before = absl::ToUnixSeconds(absl::Now());
  const v1::Tensor tensor = Make("A");
  EXPECT_GE(tensor.create_time().seconds(), before);
  EXPECT_LE(tensor.create_time().seconds(), absl::ToUnixSeconds(absl::Now()));
}

}  // namespace
}  // namespace agmm
