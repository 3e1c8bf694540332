// A pin keeps the memory of a tensor, and delays no lease.
#include "gmock/gmock.h"
#include "tests/daemon/sequencer/catalog_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

class CatalogPins : public CatalogTest {
 protected:
  // Writes the tensor, and leaves a pin of the node. Returns its id.
  uint64_t WriteAndPin(uint64_t tensor, int node = 0) {
    const Opened write = Begin(tensor, true, node);
    EXPECT_TRUE(Granted(write));
    EXPECT_TRUE(Pin(AccessOf(write), true, node).ok());
    return AccessOf(write);
  }
  absl::StatusOr<v1::Tensor> Pin(uint64_t access, bool commit, int node = 0) {
    return End(access, commit, /*untouched=*/!commit, node, /*pin=*/true);
  }
  absl::Status Unpin(uint64_t pin, int node = 0) {
    return End(pin, false, /*untouched=*/true, node).status();
  }
  // The nodes that were sent EndMappings since the last call, and the tensors.
  std::vector<std::pair<int, uint64_t>> EndedMappings() {
    std::vector<std::pair<int, uint64_t>> ended;
    for (const auto& [node, command] : members_.Take(v1::Command::kEndMappings))
      ended.emplace_back(node, command.end_mappings().tensor_id());
    return ended;
  }
};

TEST_F(CatalogPins, ACommitThatPinsGivesTheNewContents) {
  const uint64_t id = Make("A").tensor_id();
  const Opened write = Begin(id, true);
  const auto committed = Pin(AccessOf(write), true);
  ASSERT_TRUE(committed.ok());
  EXPECT_EQ(committed->state(), v1::Tensor::STATE_READY);
  EXPECT_GT(committed->version(), (**write)->tensor().version());
}

TEST_F(CatalogPins, ItDelaysNoLease) {
  const uint64_t id = Make("A").tensor_id();
  const Opened write = Begin(id, true), waiting = Begin(id, false);
  EXPECT_FALSE(waiting->has_value());
  EXPECT_TRUE(Pin(AccessOf(write), true).ok());
  EXPECT_TRUE(Granted(waiting));
  EXPECT_TRUE(End(AccessOf(waiting), false).ok());
  // Leases of all kinds, with a second pin.
  WriteAndPin(id);
  EXPECT_TRUE(Granted(Begin(id, false)));
  const Opened behind = Begin(id, true);
  EXPECT_FALSE(behind->has_value());
  bool job = false;
  const uint64_t other = Make("B").tensor_id();
  WriteAndPin(other);
  catalog_->Acquire(other, true, [&](const absl::Status& granted) { job = granted.ok(); });
  EXPECT_TRUE(job);
}

TEST_F(CatalogPins, AReaderCanPinToo) {
  const uint64_t id = MakeReady("A").tensor_id();
  const Opened read = Begin(id, false), write = Begin(id, true);
  EXPECT_TRUE(Pin(AccessOf(read), false).ok());
  ASSERT_TRUE(Granted(write));
  EXPECT_TRUE(End(AccessOf(write), true).ok());
  EXPECT_TRUE(Unpin(AccessOf(read)).ok());
}

TEST_F(CatalogPins, ItKeepsTheMemoryOfADeletedTensor) {
  const int64_t before = Free();
  const uint64_t id = Make("A").tensor_id();
  const uint64_t pin = WriteAndPin(id, /*node=*/1);
  EXPECT_THAT(EndedMappings(), IsEmpty());
  EXPECT_TRUE(Delete(id).ok());
  EXPECT_EQ(Named("A"), 0u);
  EXPECT_LT(Free(), before);
  EXPECT_THAT(EndedMappings(), ElementsAre(Pair(1, id)));
  // It can be read through no new lease.
  EXPECT_EQ((**Begin(id, false)).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Unpin(pin, 0).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Unpin(pin, 1).ok());
  EXPECT_EQ(Free(), before);
  EXPECT_EQ(Unpin(pin, 1).code(), absl::StatusCode::kAborted);
}

TEST_F(CatalogPins, ADeletedTensorIsNotPinned) {
  const int64_t before = Free();
  const uint64_t id = Make("A").tensor_id();
  const Opened write = Begin(id, true, /*node=*/1);
  EXPECT_TRUE(Delete(id).ok());
  EXPECT_EQ(Pin(AccessOf(write), true, 1).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(EndedMappings(), IsEmpty());
  EXPECT_EQ(Free(), before);
}

TEST_F(CatalogPins, AReplacedTensorKeepsItsMemoryToo) {
  const uint64_t id = Make("A").tensor_id();
  WriteAndPin(id);
  // A put of another shape takes the name.
  const Opened put = Put(TensorRequest("A", "[M_x, K]", 16, 8, MeshOf(4)));
  AnswerPlaced();
  ASSERT_TRUE(Granted(put));
  EXPECT_THAT(EndedMappings(), IsEmpty());
  EXPECT_TRUE(End(AccessOf(put), true).ok());
  EXPECT_THAT(EndedMappings(), ElementsAre(Pair(0, id)));
}

TEST_F(CatalogPins, ItIsVoidWithItsGeneration) {
  const int64_t before = Free();
  const uint64_t id = Make("A").tensor_id();
  const uint64_t pin = WriteAndPin(id);
  members_.complete = absl::UnavailableError("between");
  catalog_->OnGenerationEnded({}, absl::AbortedError("it ended"));
  members_.complete = absl::OkStatus();
  catalog_->OnReady();
  EXPECT_EQ(Unpin(pin).code(), absl::StatusCode::kAborted);
  EXPECT_TRUE(Delete(id).ok());
  EXPECT_EQ(Free(), before);
}

TEST_F(CatalogPins, AWaitIsNotBlamedOnAPin) {
  const uint64_t id = MakeReady("A").tensor_id();
  WriteAndPin(id);
  const Opened read = Begin(id, false), write = Begin(id, true);
  ASSERT_TRUE(Granted(read));
  const auto waits = catalog_->leases().Select([](const Lease& lease) { return !lease.granted; });
  ASSERT_EQ(waits.size(), 1u);
  const Lease* const holder = catalog_->leases().HolderBefore(*catalog_->leases().Find(waits[0]));
  ASSERT_NE(holder, nullptr);
  EXPECT_EQ(holder->id, AccessOf(read));
}

}  // namespace
}  // namespace agmm
