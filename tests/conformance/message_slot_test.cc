// A message is accepted only if this node's own schedule confirms it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/device/message_slot.h"
#include "kernels/schedule/index.h"
#include "tests/conformance/cases.h"
#include "tests/support/hidden_heap.h"

namespace agmm::test {
namespace {

// Two ranks on two nodes; we are node 1 and hold rank 1.
class ArrivalTest : public testing::Test {
 protected:
  ArrivalTest()
      : cluster_(DeviceKinds()[0], kCase.topology(), SmallHeap()),
        problem_(kCase.problem()),
        schedule_(kCase.schedule()),
        heaps_{nullptr, cluster_.heap(1)} {
    for (size_t i = 0; i < schedule_.ranks[0].size(); ++i) {
      const auto* transfer = std::get_if<Transfer>(&schedule_.ranks[0][i].op);
      if (transfer != nullptr) send_ = static_cast<int>(i);
      if (transfer == nullptr && !schedule_.ranks[0][i].signals.empty())
        credit_ = static_cast<int>(i);
    }
  }
  static Cluster::Options SmallHeap() {
    Cluster::Options options;
    options.heap_bytes = 1 << 20;
    return options;
  }
  absl::StatusOr<Arrival> Resolve(const Message& message, int64_t bytes, int from_node = 0) {
    const ArrivalContext context{problem_, schedule_, nodes_, 1, heaps_, operands_};
    return ResolveArrival(context, from_node, message, bytes);
  }
  absl::StatusCode Code(const Message& message, int64_t bytes, int from_node = 0) {
    return Resolve(message, bytes, from_node).status().code();
  }
  Message Sent() const { return {1, 5, 0, send_, 0}; }

  static inline const Case kCase{"ring", DType::kF32, 2, 2, 1, 40, 12, 20, 1};
  static constexpr int64_t kBytes = 20 * 20 * 4;
  Cluster cluster_;
  const Problem problem_;
  Schedule schedule_;
  const std::vector<int> nodes_{0, 1};
  const std::vector<Heap*> heaps_;
  Operands bound_{{8192, 16384, 32768}, {1, 1, 1}, 4096};
  const Operands* operands_ = &bound_;
  int send_ = -1, credit_ = -1;
};

TEST_F(ArrivalTest, AWorkspaceOutsideTheHeapIsRefusedAtAnyOffset) {
  for (int64_t offset : {int64_t{-128}, INT64_MIN, int64_t{1} << 20, INT64_MAX - 127}) {
    bound_.workspace_offset = offset;
    EXPECT_EQ(Code(Sent(), kBytes), absl::StatusCode::kInvalidArgument) << offset;
  }
}

TEST_F(ArrivalTest, BytesForAHiddenHeapAreWrittenAtTheirOffset) {
  HiddenHeap hidden(cluster_.heap(1)->host());
  const std::vector<Heap*> heaps{nullptr, &hidden};
  const ArrivalContext context{problem_, schedule_, nodes_, 1, heaps, operands_};
  const auto arrival = ResolveArrival(context, 0, Sent(), kBytes);
  ASSERT_TRUE(arrival.ok()) << arrival.status();
  EXPECT_EQ(arrival->to.data, nullptr);
  EXPECT_EQ(arrival->to.heap, &hidden);
  const Place& to = std::get<Transfer>(schedule_.ranks[0][send_].op).to[0];
  EXPECT_EQ(arrival->to.offset_bytes, 4096 + to.offset_bytes);
}

TEST_F(ArrivalTest, BytesAreWrittenToTheScheduledPlace) {
  const auto arrival = Resolve(Sent(), kBytes);
  ASSERT_TRUE(arrival.ok()) << arrival.status();
  const auto& step = schedule_.ranks[0][send_];
  const Place& to = std::get<Transfer>(step.op).to[0];
  EXPECT_EQ(arrival->to.data, cluster_.heap(1)->host().data() + 4096 + to.offset_bytes);
  EXPECT_EQ(arrival->to.rows, 20);
  EXPECT_EQ(arrival->to.row_bytes, 80);
  EXPECT_EQ(arrival->to.pitch_bytes, to.pitch_bytes);
  EXPECT_EQ(arrival->slot, step.signals[0]);
}

TEST_F(ArrivalTest, ASignalAloneHasNoBytes) {
  ASSERT_GE(credit_, 0);
  const Message message{1, 5, 0, credit_, 0};
  const auto arrival = Resolve(message, 0);
  ASSERT_TRUE(arrival.ok()) << arrival.status();
  EXPECT_EQ(arrival->to.rows, 0);
  EXPECT_EQ(Code(message, 4), absl::StatusCode::kInvalidArgument);
}

TEST_F(ArrivalTest, AnUnscheduledMessageIsRefused) {
  EXPECT_EQ(Code(Sent(), kBytes - 4), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(Sent(), 0), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Code(Sent(), kBytes, /*from_node=*/1), absl::StatusCode::kInvalidArgument);
  for (auto change : std::vector<std::function<void(Message&)>>{
           [](Message& m) { m.source = -1; }, [](Message& m) { m.source = 2; },
           [](Message& m) { m.source = 1; }, [](Message& m) { m.step = -1; },
           [](Message& m) { m.step = 1000; }, [](Message& m) { m.part = -1; },
           [](Message& m) { m.part = 1000; }, [](Message& m) { m.epoch = 0; }}) {
    Message message = Sent();
    change(message);
    EXPECT_EQ(Code(message, kBytes), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(ArrivalTest, AMessageBeforeItsLaunchIsNotAnError) {
  operands_ = nullptr;
  EXPECT_EQ(Code(Sent(), kBytes), absl::StatusCode::kFailedPrecondition) << "the workspace";
  EXPECT_EQ(Code(Sent(), kBytes - 4), absl::StatusCode::kInvalidArgument) << "wrong in any place";
  EXPECT_EQ(Code({1, 5, 0, credit_, 0}, 0), absl::StatusCode::kOk) << "it writes nothing";
  // A schedule that writes into a peer's A.
  auto& step = schedule_.ranks[0][send_];
  Place& to = std::get<Transfer>(step.op).to[0];
  to.buffer = kA;
  to.offset_bytes = 0;
  EXPECT_EQ(Code(Sent(), kBytes), absl::StatusCode::kFailedPrecondition);
  operands_ = &bound_;
  const auto arrival = Resolve(Sent(), kBytes);
  ASSERT_TRUE(arrival.ok()) << arrival.status();
  EXPECT_EQ(arrival->to.data, cluster_.heap(1)->host().data() + 8192);
}

TEST_F(ArrivalTest, BytesStayInsideTheBufferAndTheHeap) {
  auto& step = schedule_.ranks[0][send_];
  std::get<Transfer>(step.op).to[0].offset_bytes = schedule_.workspace_bytes;
  EXPECT_EQ(Code(Sent(), kBytes), absl::StatusCode::kInvalidArgument);
  std::get<Transfer>(step.op).to[0].buffer = 77;
  EXPECT_EQ(Code(Sent(), kBytes), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace agmm::test
