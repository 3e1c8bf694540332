#include <algorithm>

#include "gmock/gmock.h"
#include "kernels/base/reason.h"
#include "tests/daemon/sequencer/catalog_fixture.h"
#include "tests/support/logged.h"

namespace agmm {
namespace {

TEST_F(CatalogTest, TheEndOfAGenerationDropsOnlyTensorsOnLostNodes) {
  const uint64_t lost = MakeReady("lost").tensor_id();
  const v1::Tensor kept_request = Make(TensorRequest("kept", "[M_x, K]", 8, 8, MeshOf(2)));
  const auto fill = Begin(kept_request.tensor_id(), true);
  ASSERT_TRUE(End((**fill)->lease_id(), true).ok());
  const uint64_t writing = Make(TensorRequest("writing", "[M_x, K]", 8, 8, MeshOf(2))).tensor_id();
  const auto write = Begin(writing, true), waiting = Begin(writing, true);
  const Created creating = Create(TensorRequest("creating", "[M_x, K]", 8, 8, MeshOf(2)));
  absl::Status job;
  catalog_->Acquire(writing, true, [&](absl::Status status) { job = status; });
  members_.sent.clear();

  members_.complete = absl::UnavailableError("n1 is missing");
  const absl::Status reason = WithReason(absl::AbortedError("node n1 was lost"), kReasonPeerLost);
  catalog_->OnGenerationEnded({1}, reason);
  EXPECT_EQ(job, reason);
  ASSERT_TRUE(waiting->has_value() && creating->has_value());
  EXPECT_EQ((*waiting)->status(), reason);
  EXPECT_EQ((*creating)->status(), reason);
  EXPECT_FALSE(catalog_->Find(lost).ok());
  EXPECT_EQ(catalog_->Find(kept_request.tensor_id())->state(), v1::Tensor::STATE_READY);
  EXPECT_EQ(catalog_->Find(writing)->state(), v1::Tensor::STATE_EMPTY);
  EXPECT_EQ(End((**write)->lease_id(), true).status().code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(members_.sent.empty());
  EXPECT_EQ(Free(0), kHeap - 2 * 4096);
  EXPECT_EQ(Free(2), kHeap);

  // Once the world is complete, the nodes drop the tensors deleted since, and place the others at
  // their old places.
  EXPECT_TRUE(Delete(writing).ok());
  members_.complete = absl::OkStatus();
  catalog_->OnReady();
  EXPECT_FALSE(members_.Take(v1::Command::kDropTensor).empty());
  const auto placed = members_.Take(v1::Command::kPlaceTensor);
  ASSERT_EQ(placed.size(), 1u);
  EXPECT_EQ(placed[0].command.place_tensor().tensor().tensor_id(), kept_request.tensor_id());
  EXPECT_EQ(Free(0), kHeap - 4096);
  Make("lost");
}

TEST_F(CatalogTest, TensorsOfTheOtherNodesAreUsedWithoutAMissingOne) {
  const v1::Tensor kept = Make(TensorRequest("kept", "[M_x, K]", 8, 8, MeshOf(2)));
  ASSERT_TRUE(End((**Begin(kept.tensor_id(), true))->lease_id(), true).ok());
  members_.missing = 1;
  const std::vector<WorldRank> whole = members_.ranks();
  for (WorldRank& rank : members_.mutable_ranks())
    if (rank.node == 1) rank.heap_bytes = 0;
  catalog_->OnGenerationEnded({1}, absl::AbortedError("node n1 was lost"));
  catalog_->OnReady();
  AnswerPlaced();
  ASSERT_TRUE(End((**Begin(kept.tensor_id(), false))->lease_id(), false).ok());
  EXPECT_EQ(ReasonOf((*Create(TensorRequest("both", "[M, K]", 8, 8, MeshOf(4))))->status()),
            kReasonWorldIncomplete);
  const uint64_t made = Make(TensorRequest("made", "[M, K]", 8, 8, MeshOf(2))).tensor_id();
  EXPECT_TRUE(Delete(made).ok());
  EXPECT_EQ(members_.Take(v1::Command::kDropTensor).size(), 1u);
  // It comes back with the same heap, so everything keeps its place.
  members_.mutable_ranks() = whole;
  members_.missing = -1;
  catalog_->OnGenerationEnded({1}, absl::AbortedError("node n1 joined"));
  catalog_->OnReady();
  EXPECT_EQ(catalog_->Find(kept.tensor_id())->offset_bytes(), kept.offset_bytes());
  EXPECT_EQ(catalog_->Find(kept.tensor_id())->state(), v1::Tensor::STATE_READY);
  EXPECT_EQ(Free(2), kHeap);
}

TEST_F(CatalogTest, LostTensorsAreLoggedByNameInOneBoundedLine) {
  const Logged logged;
  Make(TensorRequest("kept", "[M_x, K]", 8, 8, MeshOf(2)));
  for (int i = 0; i < 10; ++i) Make(absl::StrCat("T", i));
  const Created creating = Create(TensorRequest("creating", "[M_x, K]", 8, 8, MeshOf(4)));
  members_.complete = absl::UnavailableError("n1 is missing");
  catalog_->OnGenerationEnded({1}, absl::AbortedError("node n1 was lost"));
  const std::string text = logged.text();
  EXPECT_THAT(text,
              ::testing::HasSubstr("10 tensors are lost: T0, T1, T2, T3, T4, T5, T6, T7, and 2 "
                                   "more; node n1 was lost"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("kept")));
}

TEST_F(CatalogTest, ALostTensorIsExplainedUntilItIsPutAgain) {
  constexpr char kLost[] =
      " is lost: node n1 was lost; write it, or run the job that computes it, again";
  const uint64_t lost = Make("W").tensor_id();
  v1::TensorRef name;
  name.set_name("W");
  members_.complete = absl::UnavailableError("n1 is missing");
  catalog_->OnGenerationEnded({1}, absl::AbortedError("node n1 was lost"));
  EXPECT_EQ(catalog_->Resolve(name).status(),
            absl::NotFoundError(absl::StrCat("tensor \"W\"", kLost)));
  EXPECT_EQ(catalog_->Find(lost).status().message(), absl::StrCat("tensor ", lost, kLost));
  EXPECT_THAT(std::string(catalog_->Find(lost + 1).status().message()),
              ::testing::HasSubstr("does not exist"));

  members_.complete = absl::OkStatus();
  catalog_->OnReady();
  ASSERT_TRUE(Delete(Make("W").tensor_id()).ok());
  EXPECT_THAT(std::string(catalog_->Resolve(name).status().message()),
              ::testing::HasSubstr("does not exist"));
  EXPECT_EQ(catalog_->Find(lost).status().message(), absl::StrCat("tensor ", lost, kLost));
}

TEST_F(CatalogTest, ChangedHeapSizesDropAllTensors) {
  const Logged logged;
  Make("A");
  members_.complete = absl::UnavailableError("n1 is missing");
  catalog_->OnGenerationEnded({}, absl::AbortedError("restart"));
  for (WorldRank& rank : members_.mutable_ranks()) rank.heap_bytes = 2 * kHeap;
  members_.complete = absl::OkStatus();
  catalog_->OnReady();
  EXPECT_EQ(catalog_->ListTensors({}).tensors_size(), 0);
  EXPECT_EQ(Free(), 2 * kHeap);
  EXPECT_THAT(logged.text(),
              ::testing::HasSubstr("1 tensor is lost: A; a daemon has come back with"));
}

}  // namespace
}  // namespace agmm
