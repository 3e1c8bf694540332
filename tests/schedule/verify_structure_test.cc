// Faults of a step by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/schedule/index.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/verify_fixture.h"

namespace agmm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// INVALID_ARGUMENT, one line, with `text` in it.
void ExpectInvalid(const Hand& hand, const char* text) {
  const absl::Status status = hand.Check();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(text), Not(HasSubstr("\n"))));
}

TEST(VerifyStructure, RankCountIsTheMeshs) {
  Hand h = Hand::Push();
  h.schedule.ranks.emplace_back();
  ExpectInvalid(h, "the schedule has 3 ranks");
  h = Hand::Push();
  h.topology = MakeTopology(3, 1);
  ExpectInvalid(h, "the topology 3; mesh x=2 has 2");
}

TEST(VerifyStructure, SlotHasOneProducer) {
  Hand h = Hand::Push();
  h.At(0, 0).signals = {{1, 0}};
  ExpectInvalid(h, "a slot has one producer");
}

TEST(VerifyStructure, AwaitedSlotHasAProducer) {
  Hand h = Hand::Push();
  h.At(1, 2).signals = {{0, 9}};
  ExpectInvalid(h, "rank 0 lane 0 step 1 waits for slot 0:0, which no step signals");
}

TEST(VerifyStructure, SlotIsAwaitedAtItsRank) {
  Hand h = Hand::Push();
  h.At(0, 1).waits = {{{1, 0}}};
  ExpectInvalid(h, "rank 0 lane 0 step 1: waits for slot 1:0 of another rank");
}

TEST(VerifyStructure, LagIsNoneOrOne) {
  for (int lag : {-1, 2}) {
    Hand h = Hand::Push();
    h.At(0, 1).waits[0].lag = lag;
    ExpectInvalid(h, "a lag is 0 or 1");
  }
}

TEST(VerifyStructure, SlotsAndLanesAreBounded) {
  for (Slot slot : {Slot{2, 0}, Slot{-1, 0}, Slot{0, -1}, Slot{0, 1 << 30}}) {
    Hand h = Hand::Push();
    h.At(0, 0).signals = {slot};
    ExpectInvalid(h, "rank 0 lane 0 step 0: slot");
  }
  for (int lane : {-1, 64}) {
    Hand h = Hand::Push();
    h.At(1, 2).lane = lane;
    ExpectInvalid(h, "lanes are 0 to 63");
  }
}

TEST(VerifyStructure, RemoteDestinationHasASignalThere) {
  Hand h = Hand::Push();
  h.At(0, 2).signals.clear();
  ExpectInvalid(h, "rank 0 lane 1 step 2: destination 0 is at rank 1 and has no signal");
  h.At(0, 2).signals = {{0, 5}};
  ExpectInvalid(h, "destination 0 is at rank 1, its signal 0:5 is not");
}

TEST(VerifyStructure, OwnDestinationNeedsNoSignal) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).to.push_back(Hand::Work(0, 4096));
  EXPECT_EQ(h.Check(), absl::OkStatus());
}

TEST(VerifyStructure, EmptyBlockIsRejectedAndEmptyJoinIsNot) {
  Hand h = Hand::Push();
  h.Add(0, Join(), 3);
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.Op<Transfer>(0, 2).block.rows.end = h.Op<Transfer>(0, 2).block.rows.begin;
  ExpectInvalid(h, "is empty");
}

TEST(VerifyStructure, BlockIsInsideItsOperand) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).block.rows = {-1, 3};
  ExpectInvalid(h, "outside of the operand's 8 x 2");
  h.Op<Transfer>(0, 2).block.operand = 3;
  ExpectInvalid(h, "operands 0 to 2");
}

TEST(VerifyStructure, PlaceIsAligned) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).to[0].offset_bytes = 6;
  ExpectInvalid(h, "a place of f32 is at byte 6; offsets are multiples of 4");
  h = Hand::Push();
  h.Op<Transfer>(0, 2).to[0].pitch_bytes = 192;
  ExpectInvalid(h, "pitches are multiples of 128");
}

TEST(VerifyStructure, RowsOfAPlaceDoNotOverlap) {
  Hand h = Hand::Push(33);
  h.Op<Transfer>(0, 2).to[0].pitch_bytes = 128;
  ExpectInvalid(h, "has rows of 256 bytes, 128 apart");
}

TEST(VerifyStructure, PlaceIsInsideTheWorkspace) {
  Hand h = Hand::Push();
  h.schedule.workspace_bytes = 3 * 256 + 128;
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.schedule.workspace_bytes -= 1;
  ExpectInvalid(h, "ends at byte 896; the workspace has 895");
  h.schedule.workspace_bytes = -1;
  ExpectInvalid(h, "the workspace has -1 bytes");
}

TEST(VerifyStructure, ResidentPlaceMatchesTheShard) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).from.offset_bytes = 128;
  ExpectInvalid(h, "in the shard it lies at byte 0");
  h = Hand::Push();
  h.Op<Transfer>(0, 2).from.pitch_bytes = 256;
  ExpectInvalid(h, "128 apart");
  h = Hand::Push();
  h.Op<Transfer>(0, 2).block = h.A(1);
  ExpectInvalid(h, "the shard is only A[0:4, 0:2]");
  h = Hand::Push();
  h.Op<Transfer>(0, 2).from.buffer = kB;
  ExpectInvalid(h, "a shard holds its own operand only");
  h = Hand::Push();
  h.Op<Transfer>(0, 2).from.buffer = 7;
  ExpectInvalid(h, "a place is in buffer 7");
}

TEST(VerifyStructure, OperandsAreNotWritten) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).to = {h.Own(h.A(0), 0)};
  h.At(0, 2).signals.clear();
  ExpectInvalid(h, "writes rank 0's A; operands are only read");
}

TEST(VerifyStructure, TransferConvertsNothing) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).to[0].dtype = DType::kBF16;
  ExpectInvalid(h, "is bf16; the operand is f32");
  h.Op<Transfer>(0, 2).to[0].dtype = static_cast<DType>(9);
  ExpectInvalid(h, "dtype 9");
}

TEST(VerifyStructure, PeerLoadStaysInsideTheNode) {
  ExpectInvalid(Hand::Load(2), "reads rank 1's A, which is on another node");
}

TEST(VerifyStructure, OnlyTransfersWriteAtOtherRanks) {
  Hand h = Hand::Load();
  h.Op<Multiply>(0, 1).out.rank = 1;
  ExpectInvalid(h, "only a transfer writes at another rank");
}

TEST(VerifyStructure, ProductFitsTogether) {
  Hand h = Hand::Push();
  h.Op<Multiply>(0, 0).a.rows = {0, 3};
  ExpectInvalid(h, "is not C[0:4, 0:2]");
  h = Hand::Push();
  std::swap(h.Op<Multiply>(0, 0).a, h.Op<Multiply>(0, 0).b);
  ExpectInvalid(h, "multiplies operands 1 and 0 into 2");
}

TEST(VerifyStructure, SumOnChipPassesFromNeighbourToNeighbour) {
  Hand h = Hand::Push();
  h.Op<Multiply>(0, 0).accumulate = true;
  ExpectInvalid(h, "adds to a sum on chip");
  h = Hand::Push();
  h.Op<Multiply>(0, 0).finish = false;
  ExpectInvalid(h, "leaves a sum on chip");

  h = Hand::Push(64);
  Multiply first = h.Product(0, 0, h.Own(h.A(0), 0), {0, 32});
  Multiply second = h.Product(0, 0, h.Own(h.A(0), 0), {32, 64});
  first.finish = false;
  second.accumulate = true;
  std::vector<Step>& steps = h.schedule.ranks[0];
  steps[0].op = second;
  steps.insert(steps.begin(), Step{Join(), 1});  // of another lane
  steps.insert(steps.begin(), Step{first, 0});
  EXPECT_EQ(h.Check(), absl::OkStatus());
  steps[1].lane = 0;
  ExpectInvalid(h, "sum on chip");
}

TEST(VerifyStructure, SumsAreF32InTheWorkspace) {
  Hand h = Hand::Push();
  Multiply& m = h.Op<Multiply>(0, 0);
  m.acc = Hand::Work(0, 4096);
  ExpectInvalid(h, "names an acc that it neither reads nor writes");
  m.accumulate = true;
  m.acc = m.out;
  ExpectInvalid(h, "sums are kept in the workspace");
  h.problem = MakeProblem(2, {8, 4, 2}, DType::kBF16);
  for (Rank r : {0, 1}) {
    for (Step& step : h.schedule.ranks[r]) {
      if (auto* product = std::get_if<Multiply>(&step.op)) {
        for (Place* place : {&product->a_place, &product->b_place, &product->out}) {
          place->dtype = DType::kBF16;
        }
      } else {
        auto& push = std::get<Transfer>(step.op);
        push.from.dtype = push.to[0].dtype = DType::kBF16;
      }
    }
  }
  m.accumulate = false;
  m.acc = std::nullopt;
  EXPECT_EQ(h.Check(), absl::OkStatus());
  m.accumulate = true;
  m.acc = Hand::Work(0, 4096);
  m.acc->dtype = DType::kBF16;
  ExpectInvalid(h, "acc is bf16; sums are f32");
}

TEST(VerifyStructure, CarrierMultipliesTheCarriedBlock) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).carrier = 1;
  ExpectInvalid(h, "is not part of what its carrier, step 1, multiplies");
  for (int carrier : {2, 3, -2}) {
    h.Op<Transfer>(0, 2).carrier = carrier;
    ExpectInvalid(h, "is not a multiply of this rank");
  }
}

TEST(VerifyStructure, ATransferHasADestination) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).to.clear();
  ExpectInvalid(h, "rank 0 lane 1 step 2: copies to no place");
}

TEST(VerifyStructure, ProblemIsValidated) {
  Hand h = Hand::Push();
  h.problem.tensors[kA].rows = 0;
  ExpectInvalid(h, "M of A is 0");
}

}  // namespace
}  // namespace agmm::test
