// The order that makes a schedule right: races, deadlocks, contents.
#include "kernels/schedule/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/schedule/index.h"
#include "tests/schedule/verify_fixture.h"

namespace agmm::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// FAILED_PRECONDITION, one line, with `text` in it.
void ExpectWrong(const absl::Status& status, const char* text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(text), Not(HasSubstr("\n"))));
}

TEST(Verify, PushIsAccepted) { EXPECT_EQ(Hand::Push().Check(), absl::OkStatus()); }

TEST(Verify, ReadWithoutWaitIsRejected) {
  Hand h = Hand::Push();
  h.At(0, 1).waits.clear();
  ExpectWrong(h.Check(), "rank 0 lane 0 step 1 reads A[4:8, 0:2] at byte 0 of rank 0's workspace");
}

TEST(Verify, OverwriteWithoutCreditIsRejected) {
  Hand h = Hand::Push();
  h.At(1, 2).waits.clear();
  ExpectWrong(h.Check(), "rank 1 lane 1 step 2 writes");
}

TEST(Verify, CreditOfTheSameEpochIsADeadlock) {
  Hand h = Hand::Push();
  h.At(0, 2).waits[0].lag = 0;
  ExpectWrong(h.Check(), "never starts");
}

TEST(Verify, ArrivalAwaitedAnEpochLateIsRejected) {
  Hand h = Hand::Push();
  h.At(0, 1).waits[0].lag = 1;
  ExpectWrong(h.Check(), "no order");
}

TEST(Verify, ReadOfTheEpochBeforeIsRejected) {
  // The write and the read are ordered, but the read finds the bytes of the previous epoch, because
  // the push waits until the read is over.
  Hand h = Hand::Push();
  for (Rank r : {0, 1}) {
    h.At(r, 1).waits = {{{r, 0}, 1}};
    h.At(r, 2).waits = {{{r, 1}, 0}};
  }
  ExpectWrong(h.Check(), "bytes not written in this epoch");
}

TEST(Verify, ArrivalWithoutAWaiterIsRejected) {
  Hand h = Hand::Push();
  h.Add(1, Transfer{h.A(1), h.Own(h.A(1), 1), {Hand::Work(0, 8192)}}, 2, {}, {{0, 7}});
  ExpectWrong(h.Check(), "its own write of the next epoch");
}

TEST(Verify, SecondReaderNeedsItsOwnCredit) {
  for (bool credit : {false, true}) {
    Hand h = Hand::Push();
    h.Add(0, Transfer{h.A(1), Hand::Work(0), {Hand::Work(0, 4096)}}, 2, {{{0, 0}}});
    if (credit) {
      h.At(0, 3).signals = {{1, 2}};
      h.At(1, 2).waits.push_back({{1, 2}, 1});
      EXPECT_EQ(h.Check(), absl::OkStatus());
    } else {
      ExpectWrong(h.Check(), "rank 0 lane 2 step 3 reads");
    }
  }
}

TEST(Verify, LaneOrderDoesNotImplyAnArrival) {
  Hand h = Hand::Push();
  h.Add(0, Join(), 1, {}, {{1, 2}});  // behind the push, in its lane
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.At(1, 1).waits = {{{1, 2}}};
  ExpectWrong(h.Check(), "no order");
}

TEST(Verify, SignalBehindTheLastDestinationMeansReadOnly) {
  Hand h = Hand::Push();
  h.At(0, 2).signals.push_back({1, 2});
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.At(1, 1).waits = {{{1, 2}}};
  ExpectWrong(h.Check(), "no order");
}

TEST(Verify, ArrivalMeansThatTheSourceHasBeenRead) {
  // Rank 0 sends its shard in two halves from one place; only rank 1's word that the first half has
  // come says that the place is free for the second.
  Hand h = Hand::Push();
  Block half[] = {h.A(0), h.A(0)};
  half[0].rows.end = half[1].rows.begin = 2;
  const Place stage = Hand::Work(0, 4096);
  h.Op<Transfer>(0, 2) = {half[0], stage, {Hand::Work(1)}};
  h.At(0, 2).waits.push_back({{0, 3}});
  h.Add(0, Transfer{half[0], h.Own(half[0], 0), {stage}}, 2, {{{0, 6}, 1}}, {{0, 3}});
  h.Add(0, Transfer{half[1], h.Own(half[1], 0), {stage}}, 2, {{{0, 4}}}, {{0, 5}});
  h.Add(0, Transfer{half[1], stage, {Hand::Work(1, 512)}}, 1, {{{0, 5}}}, {{1, 2}, {0, 6}});
  h.Add(1, Join(), 2, {{{1, 0}}}, {{0, 4}});
  h.At(1, 1).waits.push_back({{1, 2}});
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.At(0, 4).waits.clear();
  ExpectWrong(h.Check(), "A[2:4, 0:2] at byte 4096 of rank 0's workspace");
}

TEST(Verify, PeerLoadInsideANodeIsAccepted) { EXPECT_EQ(Hand::Load().Check(), absl::OkStatus()); }

TEST(Verify, PeerLoadWithoutEntryJoinIsRejected) {
  Hand h = Hand::Load();
  h.At(0, 2).waits.clear();
  ExpectWrong(h.Check(), "which rank 1 may not have launched yet");
}

TEST(Verify, PeerLoadWithoutExitJoinIsRejected) {
  Hand h = Hand::Load();
  h.Drop(1, 3);
  ExpectWrong(h.Check(), "rank 1 may end its epoch meanwhile");
}

TEST(Verify, PeerLoadWithExitJoinOfTheEpochBeforeIsRejected) {
  Hand h = Hand::Load();
  h.At(1, 3).waits[0].lag = 1;
  ExpectWrong(h.Check(), "rank 1 may end its epoch meanwhile");
}

TEST(Verify, BlockIsSentIntoAnothersCOnlyInsideItsEpoch) {
  // Rank 0 computes all of C: rank 1 pushes A and B, and gets its columns back. The arrival of its
  // A says that its epoch has begun, its join that the epoch is not over before all has come back.
  Hand h(2, 2);
  h.Add(1, Transfer{h.A(1), h.Own(h.A(1), 1), {Hand::Work(0)}}, 0, {{{1, 0}, 1}}, {{0, 0}});
  h.Add(1, Transfer{h.B(1), h.Own(h.B(1), 1), {Hand::Work(0, 1024)}}, 0, {}, {{0, 1}});
  h.Add(1, Join(), 0, {{{1, 1}}, {{1, 2}}});
  h.Add(0, h.OwnProduct(0), 0);
  h.Add(0, h.Product(0, 1, Hand::Work(0)), 0, {{{0, 0}}, {{0, 1}}});
  for (Rank owner : {0, 1}) {
    Multiply m = h.Product(1, owner, owner == 0 ? h.Own(h.A(0), 0) : Hand::Work(0));
    m.b_place = Hand::Work(0, 1024);
    m.out = Hand::Work(0, 2048 + 1024 * owner);
    h.Add(0, m, 0, {}, owner == 1 ? std::vector<Slot>{{1, 0}} : std::vector<Slot>{});
  }
  for (Rank owner : {0, 1}) {
    const Block c = h.C(1, owner);
    const Place from = Hand::Work(0, 2048 + 1024 * owner);
    h.Add(0, Transfer{c, from, {h.Own(c, 1)}}, 0, {}, {{1, 1 + owner}});
  }
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.At(1, 2).waits.pop_back();
  ExpectWrong(h.Check(), "rank 1 may end its epoch meanwhile");
}

TEST(Verify, CycleNamesAStepAndWhatItWaitsFor) {
  Hand h = Hand::Push();
  for (Rank r : {0, 1}) {
    h.At(r, 0).waits = {{{r, 5}}};
    h.At(r, 1).signals.push_back({1 - r, 5});
  }
  ExpectWrong(h.Check(), "(a cycle)");
  EXPECT_THAT(std::string(h.Check().message()), HasSubstr("lane 0 step"));
}

TEST(Verify, UnfinishedCIsRejected) {
  Hand h = Hand::Push();
  h.Drop(0, 0);
  ExpectWrong(h.Check(), "rank 0 ends with 8 of the 16 elements of C[0:8, 0:2] unfinished");
}

// Each of two ranks adds up its half of K. C remains the open sum of both.
Hand OpenSum(const char* spec = "A[M, K_x] * B[K_x, N] -> C[M, N]{U_x}") {
  Hand h;
  h.problem = MakeProblem(2, {8, 4, 4}, DType::kF32, spec);
  for (Rank r : {0, 1}) {
    Multiply m;
    m.a = h.A(r);
    m.b = h.B(r);
    m.c = ShardBlock(h.problem, kC, r);
    m.a_place = h.Own(m.a, r);
    m.b_place = h.Own(m.b, r);
    m.out = h.Own(m.c, r);
    h.Add(r, m, 0);
  }
  return h;
}

TEST(Verify, AnOpenSumMayEndAsOnePartAtEachRank) { EXPECT_EQ(OpenSum().Check(), absl::OkStatus()); }

TEST(Verify, ASumThatIsNotOpenHasAllTermsAtOneRank) {
  Hand h = OpenSum();
  h.problem.tensors[kC].sharding.open.clear();
  ExpectWrong(h.Check(), "finishes C[0:8, 0:4] with K 0:2 of 0:4 only");
}

TEST(Verify, AnOpenSumWithoutOneOfItsTermsIsRejected) {
  Hand h = OpenSum();
  h.Op<Multiply>(1, 0).a.cols = h.Op<Multiply>(1, 0).b.rows = {2, 3};
  ExpectWrong(h.Check(), "the parts of the open sum C[0:8, 0:4] have K 0:3 of 0:4 only");
}

TEST(Verify, AnOpenSumWithATermAtTwoRanksIsRejected) {
  ExpectWrong(OpenSum("A[M, K] * B[K, N] -> C[M, N]{U_x}").Check(),
              "rank 1 ends with K 0:4 in C[0:8, 0:4], and the ranks before it with K 0:4");
}

TEST(Verify, AMultiplyOfAnOpenSumIsRejected) {
  ExpectWrong(OpenSum("A[M, K]{U_x} * B[K, N] -> C[M, N]").Check(),
              "rank 0 lane 0 step 0: multiplies A[0:8, 0:4] at byte 0 of rank 0's A, but finds "
              "A[0:8, 0:4] at byte 0 of rank 0's A, summed over parts 0:1; close the sum first");
}

TEST(Verify, FinishingTwiceIsRejected) {
  Hand h = Hand::Push();
  h.Add(0, h.OwnProduct(0), 0);
  ExpectWrong(h.Check(), "rank 0 lane 0 step 3: writes C[0:4, 0:2] at byte 0 of rank 0's C, which");
}

TEST(Verify, WrongBlockIsRejected) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).block.rows = {1, 3};
  h.Op<Transfer>(0, 2).from.offset_bytes = 128;
  ExpectWrong(h.Check(), "rank 1 lane 0 step 1: reads A[0:4, 0:2]");
}

TEST(Verify, WrongPitchIsRejected) {
  Hand h = Hand::Push();
  h.Op<Multiply>(1, 1).a_place.pitch_bytes = 128;
  ExpectWrong(h.Check(), "rank 1 lane 0 step 1: reads A[0:4, 0:2]");
}

TEST(Verify, OneRowNeedsNoPitch) {
  Hand h = Hand::Push();
  h.problem = MakeProblem(2, {2, 4, 2});
  for (Rank r : {0, 1}) {
    const Rank o = 1 - r;
    h.schedule.ranks[r].clear();
    h.Add(r, h.OwnProduct(r), 0);
    h.Add(r, h.Product(r, o, Hand::Work(r, 0, 0)), 0, {{{r, 0}}}, {{o, 1}});
    const Place to = Hand::Work(o, 0, 1024);
    h.Add(r, Transfer{h.A(r), h.Own(h.A(r), r), {to}}, 1, {{{r, 1}, 1}}, {{o, 0}});
  }
  EXPECT_EQ(h.Check(), absl::OkStatus());
}

TEST(Verify, PlacesThatShareABytePaddingIncludedClash) {
  // Rows of 33 elements take 132 bytes and own 256.
  Hand h = Hand::Push(33);
  h.Add(0, Transfer{h.A(0), h.Own(h.A(0), 0), {Hand::Work(0, 1024)}}, 0);
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.Op<Transfer>(0, 3).to[0].offset_bytes = 896;  // the last row of the arrival ends at 1024
  ExpectWrong(h.Check(), "no order");
}

TEST(Verify, RowsMayInterleave) {
  Hand h = Hand::Push();
  h.Add(0, Transfer{h.A(0), h.Own(h.A(0), 0), {Hand::Work(0, 128, 256)}}, 0);
  EXPECT_EQ(h.Check(), absl::OkStatus());
}

TEST(Verify, StepMayNotOverwriteItsOwnSource) {
  Hand h = Hand::Push();
  h.Add(0, Transfer{h.A(0), h.Own(h.A(0), 0), {Hand::Work(0, 4096)}}, 0);
  h.Add(0, Transfer{h.A(0), Hand::Work(0, 4096), {Hand::Work(0, 4096 + 256)}}, 0);
  ExpectWrong(h.Check(), "rank 0 lane 0 step 4");
}

TEST(Verify, ReplicatedCIsFinishedByEachHolder) {
  Hand h = Hand::Push();
  h.problem = MakeProblem(2, {8, 4, 2}, DType::kF32, "A[M_x, K] * B[K, N] -> C[M, N]");
  for (Rank r : {0, 1}) {
    for (int s : {0, 1}) {
      Multiply& m = h.Op<Multiply>(r, s);
      const Rank owner = s == 0 ? r : 1 - r;
      m = h.Product(r, owner, m.a_place);
    }
  }
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.Drop(1, 0);
  ExpectWrong(h.Check(), "rank 1 ends with 16 of the 32 elements");
}

// Rank 0's own product in two slabs of K, in lane 0 in front of the rest.
Hand Slabs(bool accumulate) {
  Hand h = Hand::Push(64);
  Multiply first = h.Product(0, 0, h.Own(h.A(0), 0), {0, 32});
  Multiply second = h.Product(0, 0, h.Own(h.A(0), 0), {32, 64});
  first.finish = false;
  second.accumulate = accumulate;
  h.At(0, 0).op = second;
  h.schedule.ranks[0].insert(h.schedule.ranks[0].begin(), Step{first, 0});
  return h;
}

TEST(Verify, SumOnChipIsAccepted) { EXPECT_EQ(Slabs(true).Check(), absl::OkStatus()); }

TEST(Verify, SumInTheWorkspaceIsAccepted) {
  Hand h = Slabs(true);
  for (int s : {0, 1}) h.Op<Multiply>(0, s).acc = Hand::Work(0, 4096);
  EXPECT_EQ(h.Check(), absl::OkStatus());
}

TEST(Verify, SumOfTheEpochBeforeIsRejected) {
  Hand h = Slabs(true);
  for (int s : {0, 1}) {
    h.Op<Multiply>(0, s).acc = Hand::Work(0, 4096);
    h.Op<Multiply>(0, s).accumulate = true;
  }
  ExpectWrong(h.Check(), "bytes not written in this epoch");
}

TEST(Verify, SliceOfKThatCountsTwiceIsRejected) {
  Hand h = Slabs(true);
  Multiply& second = h.Op<Multiply>(0, 1);
  const Multiply first = h.Op<Multiply>(0, 0);
  second.a = first.a, second.a_place = first.a_place;
  second.b = first.b, second.b_place = first.b_place;
  ExpectWrong(h.Check(), "adds K 0:32 to a sum over K 0:32; each slice counts once");
}

TEST(Verify, FinishWithAPartOfKIsRejected) {
  Hand h = Slabs(true);
  h.Drop(0, 0);
  h.Op<Multiply>(0, 0).accumulate = false;
  ExpectWrong(h.Check(), "finishes C[0:4, 0:2] with K 32:64 of 0:64 only");
}

TEST(Verify, ReductionOfBothHalvesIsAcceptedAndOfOneTwiceRejected) {
  for (bool twice : {false, true}) {
    Hand h = Slabs(false);
    for (int s : {0, 1}) {
      h.Op<Multiply>(0, s).acc = Hand::Work(0, 4096 + 1024 * s);
      h.Op<Multiply>(0, s).finish = false;
    }
    if (twice) {
      const Place acc = *h.Op<Multiply>(0, 1).acc;
      h.Op<Multiply>(0, 1) = h.Op<Multiply>(0, 0);
      h.Op<Multiply>(0, 1).acc = acc;
    }
    const Block c = h.C(0, 0);
    h.Add(0, Reduce{c, {Hand::Work(0, 4096)}, Hand::Work(0, 5120), h.Own(c, 0), true, true}, 0);
    if (twice) {
      ExpectWrong(h.Check(), "each slice counts once");
    } else {
      EXPECT_EQ(h.Check(), absl::OkStatus());
    }
  }
}

TEST(Verify, PassThatWaitsForItselfIsRejected) {
  Hand h = Slabs(true);
  h.At(0, 0).signals = {{0, 7}};
  h.Add(0, Join(), 3, {{{0, 7}}}, {{0, 8}});
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.At(0, 1).waits = {{{0, 8}}};
  ExpectWrong(h.Check(),
              "which cannot start before it either (a cycle; it runs as one with step 0)");
}

TEST(Verify, PassThatWritesOverItsOwnOperandsIsRejected) {
  Hand h = Slabs(true);
  const Block slab = h.Op<Multiply>(0, 0).a;
  h.Op<Multiply>(0, 0).a_place = Hand::Work(0, 4096);
  h.schedule.ranks[0].insert(h.schedule.ranks[0].begin(),
                             Step{Transfer{slab, h.Own(slab, 0), {Hand::Work(0, 4096)}}, 0});
  const Block c = h.C(0, 0);
  h.Add(0, Transfer{c, Hand::Work(0, 8192), {h.Own(c, 0)}}, 0);
  h.Op<Multiply>(0, 2).out = Hand::Work(0, 8192);
  EXPECT_EQ(h.Check(), absl::OkStatus());
  h.Op<Multiply>(0, 2).out = h.Op<Transfer>(0, 5).from = Hand::Work(0, 4096);
  ExpectWrong(h.Check(), "of the same tile pass reads");
}

TEST(Verify, CarriedTransferGatesItsMultiply) {
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).carrier = 0;
  EXPECT_EQ(h.Check(), absl::OkStatus());
  // The slot that the push waits for is signalled after the multiply that carries it.
  h.At(0, 2).waits.push_back({{0, 5}});
  h.At(0, 1).signals.push_back({0, 5});
  ExpectWrong(h.Check(), "never starts");
  h.Op<Transfer>(0, 2).carrier = -1;
  EXPECT_EQ(h.Check(), absl::OkStatus());
}

// A kernel that sends its own tiles runs a multiply and the transfers that it carries as one.
TEST(Verify, CarriedTransfersRunWithTheirMultiplies) {
  // The push waits for the other product, behind which the multiply that carries it would run.
  Hand h = Hand::Push();
  h.Op<Transfer>(0, 2).carrier = 0;
  h.Add(0, Join(), 1, {{{0, 5}}});
  h.At(0, 1).signals.push_back({0, 5});
  std::swap(h.At(0, 2), h.At(0, 3));
  ExpectWrong(h.Check(), "rank 0 lane 1 step 3 never starts: it follows rank 0 lane 1 step 2");
  h.Op<Transfer>(0, 3).carrier = -1;
  EXPECT_EQ(h.Check(), absl::OkStatus());
}

TEST(Verify, CarriedTransfersOfALaneKeepTheOrderOfTheirMultiplies) {
  Hand h = Hand::Push();
  const auto halve = [](Range rows, int half) { return SplitRange(rows.size(), 2, half); };
  // Rank 0 multiplies and sends its shard in halves.
  const Multiply own = h.OwnProduct(0);
  const Transfer push = h.Op<Transfer>(0, 2);
  h.Drop(0, 2);
  h.Drop(0, 0);
  for (int half : {0, 1}) {
    Multiply part = own;
    part.a.rows = part.c.rows = halve(own.a.rows, half);
    part.a_place = h.Own(part.a, 0);
    part.out = h.Own(part.c, 0);
    h.Add(0, part, 0);
    Transfer send = push;
    send.block.rows = part.a.rows;
    send.from = part.a_place;
    send.to[0].offset_bytes += part.a.rows.begin * send.to[0].pitch_bytes;
    h.Add(0, send, 1, {{{0, 1}, 1}}, {{1, half == 0 ? 0 : 6}});
  }
  h.At(1, 1).waits.push_back({{1, 6}});
  h.Op<Transfer>(0, 2).carrier = 1;
  h.Op<Transfer>(0, 4).carrier = 3;
  EXPECT_EQ(h.Check(), absl::OkStatus());
  std::swap(h.At(0, 2), h.At(0, 4));
  ExpectWrong(h.Check(), "never starts: it follows");
}

}  // namespace
}  // namespace agmm::test
