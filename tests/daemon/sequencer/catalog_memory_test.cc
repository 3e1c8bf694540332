// The message of a full heap names the largest tensors on the rank.
#include "gmock/gmock.h"
#include "kernels/base/reason.h"
#include "tests/daemon/sequencer/catalog_fixture.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

TEST_F(CatalogTest, AFullHeapNamesTheTensorsThatUseIt) {
  const auto large = [](const std::string& name, int64_t rows, int first) {
    return TensorRequest(name, "[M_x, K]", rows, 8, MeshOf(2, first));
  };
  Make(large("W", 2 * 192, 0));  // 24 KiB a rank
  Make(large("X", 2 * 128, 0));
  Make(large("elsewhere", 2 * 64, 2));
  const uint64_t gone = Make(large("", 2 * 96, 0)).tensor_id();
  Make(large("small", 2, 0));
  catalog_->Acquire(gone, true, [](const absl::Status&) {});
  ASSERT_TRUE(Delete(gone).ok());
  ASSERT_TRUE(placement_.Allocate({0}, 4096, MemoryClass::kWorkspace).ok());
  const absl::Status full = (*Create(large("Y", 2 * 128, 0)))->status();
  EXPECT_EQ(ReasonOf(full), kReasonHeapFull);
  EXPECT_EQ(
      full.message(),
      "16 KiB were requested on each of ranks 0,1; rank 0 has 4 KiB free of 64 KiB, and the "
      "largest "
      "piece free on all of them is 4 KiB; rank 0 holds tensors 56 KiB (W 24 KiB, X 16 KiB, tensor "
      "4 "
      "12 KiB, deleted but still in use, 1 more), workspaces 4 KiB; delete tensors or give the "
      "devices larger heaps");
}

TEST_F(CatalogTest, AFullHeapIsReportedInOneLine) {
  Make(TensorRequest("two\nlines", "[M_x, K]", 2 * 256, 8, MeshOf(2)));
  const absl::Status full =
      (*Create(TensorRequest("Y", "[M_x, K]", 2 * 512, 8, MeshOf(2))))->status();
  EXPECT_THAT(std::string(full.message()), HasSubstr("two\\nlines 32 KiB"));
}

TEST(CatalogMemory, ATensorOfASubMeshUsesNoMemoryOnOtherRanks) {
  FakeMembers members(2, 4, kHeap);
  Placement placement;
  const std::unique_ptr<Catalog> catalog = std::make_unique<Catalog>(&members, &placement);
  catalog->OnReady();
  const auto create = [&](const std::string& name, int first) {
    const auto id =
        catalog->CreateAtOnce({}, TensorRequest(name, "[M_x, K]", 4 * 256, 8, MeshOf(4, first)));
    EXPECT_TRUE(id.ok()) << id.status();
    return *catalog->Find(id.value_or(0));
  };
  const v1::Tensor high = create("high", 4);
  for (int rank : {0, 1, 2, 3}) EXPECT_EQ(placement.free_bytes(rank), kHeap);
  for (int rank : {4, 5, 6, 7}) EXPECT_EQ(placement.free_bytes(rank), kHeap - 256 * 128);
  for (const auto& sent : members.Take(v1::Command::kPlaceTensor)) EXPECT_EQ(sent.node, 1);
  const v1::Tensor low = create("low", 0);
  EXPECT_EQ(low.offset_bytes(), high.offset_bytes());
  // A tensor over both halves is placed above both.
  const v1::Tensor both = create("both", 2);
  EXPECT_EQ(both.offset_bytes(), 256 * 128);
}

}  // namespace
}  // namespace agmm
