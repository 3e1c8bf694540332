// Memory that clients still have mapped is not reused for another tensor, even after a restart.
#include "gmock/gmock.h"
#include "tests/daemon/sequencer/catalog_fixture.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

class CatalogHolds : public CatalogTest {
 protected:
  v1::Tensor MakeHere(const std::string& name) {
    const v1::Tensor tensor = Make(TensorRequest(name, "[M_x, K]", 8, 8, MeshOf(2)));
    const auto write = Begin(tensor.tensor_id(), true);
    EXPECT_TRUE(End(AccessOf(write), true).ok());
    return tensor;
  }
  static v1::Report HeldReport(const v1::Tensor& tensor, uint64_t hold, bool writable) {
    v1::Report report;
    v1::MemoryHeld* held = report.mutable_memory_held();
    held->set_hold_id(hold);
    for (int rank : tensor.spec().mesh().ranks()) held->add_ranks(rank);
    held->set_offset_bytes(tensor.offset_bytes());
    held->set_bytes(tensor.shard_bytes());
    held->set_writable(writable);
    held->set_tensor_name(tensor.name());
    return report;
  }
  void Hold(const v1::Tensor& tensor, uint64_t hold, bool writable = true) {
    catalog_->OnReport(0, HeldReport(tensor, hold, writable));
  }
  void Release(uint64_t hold, int node = 0) {
    v1::Report report;
    report.mutable_memory_released()->set_hold_id(hold);
    catalog_->OnReport(node, report);
  }
  void EndGeneration(const std::vector<int>& lost) {
    members_.complete = absl::UnavailableError("between");
    catalog_->OnGenerationEnded(lost, absl::AbortedError("it ended"));
  }
  void BeReady() {
    members_.complete = absl::OkStatus();
    catalog_->OnReady();
  }
  int64_t Held() const { return catalog_->HeldBytes()[0]; }
  int64_t Tensors() const { return placement_.used_bytes(0, MemoryClass::kTensor) - Held(); }
};

TEST_F(CatalogHolds, ATensorThatIsHeldWaitsForItsClientInTheNextGeneration) {
  const v1::Tensor tensor = MakeHere("A");
  EndGeneration({});
  Hold(tensor, 7);
  BeReady();
  EXPECT_EQ(Held(), 4096);
  EXPECT_EQ(Tensors(), 0);
  // A lease on this tensor waits; leases on others do not.
  const Opened write = Begin(tensor.tensor_id(), true), read = Begin(tensor.tensor_id(), false);
  EXPECT_FALSE(write->has_value());
  EXPECT_FALSE(read->has_value());
  MakeHere("B");
  Release(6);
  Release(7, 1);
  EXPECT_FALSE(write->has_value());
  Release(7);
  EXPECT_TRUE(Granted(write));
  EXPECT_EQ(Held(), 0);
  EXPECT_EQ(Tensors(), 2 * 4096);
}

TEST_F(CatalogHolds, ReadersShareMemoryHeldByReaders) {
  const v1::Tensor tensor = MakeHere("A");
  EndGeneration({});
  Hold(tensor, 7, /*writable=*/false);
  Hold(tensor, 8, /*writable=*/false);
  BeReady();
  const Opened read = Begin(tensor.tensor_id(), false), write = Begin(tensor.tensor_id(), true);
  ASSERT_TRUE(Granted(read));
  EXPECT_TRUE(End(AccessOf(read), false).ok());
  Release(7);
  EXPECT_FALSE(write->has_value());
  EXPECT_EQ(Held(), 4096);
  Release(8);
  EXPECT_TRUE(Granted(write));
}

TEST_F(CatalogHolds, TheHeldSpaceOfADeletedTensorIsNamed) {
  const v1::Tensor tensor = Make("over both");
  EndGeneration({1});
  v1::Tensor here = tensor;
  *here.mutable_spec()->mutable_mesh() = MeshOf(2);
  Hold(here, 7);
  Hold(here, 8);
  BeReady();
  EXPECT_EQ(Named("over both"), 0u);
  EXPECT_EQ(Free(0), kHeap - 4096);
  EXPECT_EQ(Free(2), kHeap);
  EXPECT_EQ(Held(), 4096);
  // No node receives a command for it.
  EXPECT_TRUE(members_.Take(v1::Command::kPlaceTensor).empty());
  const absl::Status full = (*Create(TensorRequest("C", "[M_x, K]", 2048, 8, MeshOf(2))))->status();
  EXPECT_THAT(std::string(full.message()), HasSubstr("over both 256 B, held by a client"));
  EXPECT_THAT(std::string(full.message()),
              HasSubstr("), of which 4 KiB are held by clients, workspaces 0 B"));
  Release(7);
  EXPECT_EQ(Free(0), kHeap - 4096);
  Release(8);
  EXPECT_EQ(Free(0), kHeap);
  EXPECT_EQ(Held(), 0);
}

TEST_F(CatalogHolds, ANewSequencerPlacesNothingWhereMemoryIsHeld) {
  const v1::Tensor tensor = MakeHere("A");
  Placement placement;
  members_.complete = absl::UnavailableError("not all have joined");
  const std::unique_ptr<Catalog> next = std::make_unique<Catalog>(&members_, &placement);
  next->OnReport(0, HeldReport(tensor, 7, true));
  members_.complete = absl::OkStatus();
  next->OnReady();
  EXPECT_EQ(next->HeldBytes()[0], 4096);
  const auto made = next->CreateAtOnce({}, TensorRequest("B", "[M_x, K]", 8, 8, MeshOf(2)));
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(next->Find(*made)->offset_bytes(), tensor.offset_bytes() + 4096);
}

TEST_F(CatalogHolds, AHoldEndsWithItsGeneration) {
  const v1::Tensor tensor = MakeHere("A");
  EndGeneration({});
  Hold(tensor, 7);
  BeReady();
  // Unmapped while the world changed: the node does not report it again.
  EndGeneration({});
  EXPECT_EQ(Held(), 0);
  BeReady();
  EXPECT_EQ(Held(), 0);
  EXPECT_TRUE(Granted(Begin(tensor.tensor_id(), true)));
}

TEST_F(CatalogHolds, WithinAGenerationAHoldCoexistsWithItsLease) {
  const v1::Tensor tensor = MakeHere("A");
  const Opened mapped = Begin(tensor.tensor_id(), true);
  ASSERT_TRUE(Granted(mapped));
  Hold(tensor, 7);
  EXPECT_EQ(Held(), 4096);
  ASSERT_TRUE(Delete(tensor.tensor_id()).ok());
  const Opened next = Begin(tensor.tensor_id(), true);
  EXPECT_EQ((*next)->status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(End(AccessOf(mapped), false).ok());
  EXPECT_EQ(Free(), kHeap - 4096);
  Release(7);
  EXPECT_EQ(Free(), kHeap);
}

TEST_F(CatalogHolds, InvalidReportsHoldNothing) {
  const v1::Tensor tensor = MakeHere("A");
  v1::Report other_node = HeldReport(tensor, 1, true);
  catalog_->OnReport(1, other_node);
  v1::Report none = HeldReport(tensor, 2, true);
  none.mutable_memory_held()->clear_ranks();
  catalog_->OnReport(0, none);
  v1::Report twice = HeldReport(tensor, 3, true);
  twice.mutable_memory_held()->add_ranks(1);
  catalog_->OnReport(0, twice);
  v1::Report taken = HeldReport(tensor, 4, true);
  taken.mutable_memory_held()->set_bytes(kHeap);
  catalog_->OnReport(0, taken);
  for (int rank : {-1, 99}) {
    v1::Report outside = HeldReport(tensor, 5, true);
    outside.mutable_memory_held()->set_ranks(0, rank);
    catalog_->OnReport(0, outside);
  }
  EXPECT_EQ(Held(), 0);
  for (uint64_t hold : {1, 2, 3, 4, 5}) Release(hold);
  EXPECT_TRUE(Granted(Begin(tensor.tensor_id(), true)));
}

}  // namespace
}  // namespace agmm
