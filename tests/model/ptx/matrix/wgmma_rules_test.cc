// The order that wgmma asks for: of its registers, of shared memory, and of the warps of a
// warpgroup. The products are those of wgmma_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/ptx/engine/test_kernel.h"

namespace ptx {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;
using testing::Not;

// Every thread writes 16 bytes of A (64 x 16 ones, at %r0; its own warp reads these). The
// first warp writes two matrices B (8 x 16 each, at %r0 + 2048 and + 2304) as well. %rd1, %rd2 and
// %rd3 are the descriptors.
const std::string kWrite = R"(
  .shared .align 1024 .b8 smem[4096];
  .reg .b32 %acc<16>;
  mov.u32 %r0, smem;
  shl.b32 %r1, %tid, 4;
  add.u32 %r1, %r1, %r0;
  mov.u32 %r2, 0x3c003c00;
  st.shared.v4.u32 [%r1], {%r2, %r2, %r2, %r2};
  setp.lt.u32 %p0, %tid, 32;
  @%p0 st.shared.v4.u32 [%r1+2048], {%r2, %r2, %r2, %r2};
  and.b32 %r3, %r0, 0x3ffff;
  shr.u32 %r3, %r3, 4;
  cvt.u64.u32 %rd0, %r3;
  add.u64 %rd1, %rd0, 0x1000080000;
  add.u64 %rd2, %rd1, 128;
  add.u64 %rd3, %rd1, 144;
  mov.b32 %acc0, 0; mov.b32 %acc1, 0; mov.b32 %acc2, 0; mov.b32 %acc3, 0;
  mov.b32 %acc4, 0; mov.b32 %acc5, 0; mov.b32 %acc6, 0; mov.b32 %acc7, 0;
  setp.eq.u32 %p1, %tid, 0;
)";
const std::string kPublish = "fence.proxy.async;\nbar.sync 0;\n";
const std::string kFence = "wgmma.fence.sync.aligned;\n";
const std::string kCommit = "wgmma.commit_group.sync.aligned;\n";
const std::string kShape = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 ";
const std::string kMma = kShape + "{%acc0, %acc1, %acc2, %acc3}, %rd1, %rd2, 1, 1, 1, 0, 0;\n";
const std::string kOther = kShape + "{%acc4, %acc5, %acc6, %acc7}, %rd1, %rd3, 1, 1, 1, 0, 0;\n";
// Both matrices B as one.
const std::string kWide =
    "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
    "{%acc0, %acc1, %acc2, %acc3, %acc4, %acc5, %acc6, %acc7}, %rd1, %rd2, 1, 1, 1, 0, 0;\n";

std::string Wait(int groups) {
  return "wgmma.wait_group.sync.aligned " + std::to_string(groups) + ";\n";
}
// Stores a register of each thread at %out.
std::string Store(const std::string& reg) {
  return "mul.wide.u32 %rd6, %tid, 4;\nadd.u64 %rd6, %rd6, %out;\nst.global.b32 [%rd6], " + reg +
         ";\n";
}

// Runs it in all modes and with several seeds, and returns the last run. All have the same findings
// and the same end.
TestRun RunAll(const std::string& body, uint32_t threads = 128) {
  TestRun last;
  bool first = true;
  for (const Mode mode : {Mode::kRandom, Mode::kLate, Mode::kEager}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      TestRun run = RunBody(body, {.out_words = threads,
                                   .threads = threads,
                                   .options = {.seed = seed, .mode = mode, .quantum = 4}});
      if (!first) {
        EXPECT_EQ(run.stop.empty(), last.stop.empty()) << run.stop << last.stop;
        EXPECT_EQ(run.findings, last.findings);
      }
      first = false;
      last = std::move(run);
    }
  }
  return last;
}

void ExpectClean(const std::string& body, float expected, uint32_t threads = 128) {
  const TestRun run = RunAll(body, threads);
  EXPECT_EQ(run.stop, "");
  EXPECT_THAT(run.findings, IsEmpty());
  for (const uint32_t word : run.out) EXPECT_EQ(word, std::bit_cast<uint32_t>(expected));
}

void ExpectFinding(const std::string& body, const std::string& text) {
  const TestRun run = RunAll(body);
  EXPECT_EQ(run.stop, "");
  EXPECT_THAT(run.findings, AllOf(Not(IsEmpty()), Each(Key(HasSubstr(text)))));
}

// ---- Registers

TEST(WgmmaRules, AFenceACommitAndAWaitAreEnough) {
  ExpectClean(kWrite + kPublish + kFence + kMma + kCommit + Wait(0) + Store("%acc0"), 16);
}

TEST(WgmmaRules, TheFirstOneNeedsAFence) {
  ExpectFinding(kWrite + kPublish + kMma + kCommit + Wait(0),
                "first wgmma.mma_async of a warp, without wgmma.fence");
}

TEST(WgmmaRules, ARegisterNeedsAFenceAfterItsUse) {
  const std::string begin = kWrite + kPublish + kFence;
  const std::string end = kCommit + Wait(0) + Store("%acc0");
  ExpectFinding(begin + "mov.b32 %acc3, 0;\n" + kMma + end, "since the last wgmma.fence");
  ExpectFinding(begin + kMma + kCommit + Wait(0) + "mov.b32 %r9, %acc1;\n" + kMma + end,
                "since the last wgmma.fence");
  ExpectClean(begin + kMma + kCommit + Wait(0) + "mov.b32 %r9, %acc1;\n" + kFence + kMma + end, 32);
  ExpectClean(begin + "mov.b32 %acc4, 0;\n" + kMma + end, 16);
}

TEST(WgmmaRules, AccumulatorsOfOneShapeNeedNoFenceBetween) {
  ExpectClean(kWrite + kPublish + kFence + kMma + kMma + kCommit + kMma + kCommit + Wait(0) +
                  Store("%acc0"),
              48);
}

TEST(WgmmaRules, AccumulatorsOfAnotherShapeNeedAWaitAndAFence) {
  const std::string begin = kWrite + kPublish + kFence + kMma + kCommit;
  const std::string end = kWide + kCommit + Wait(0) + Store("%acc0");
  ExpectFinding(begin + end, "in flight, of another shape");
  ExpectFinding(begin + kFence + end, "in flight, of another shape");
  ExpectFinding(begin + Wait(0) + end,
                "of another shape or as another matrix, without wgmma.fence");
  ExpectClean(begin + Wait(0) + kFence + end, 32);
}

TEST(WgmmaRules, RegistersInFlightMustNotBeUsed) {
  const std::string begin = kWrite + kPublish + kFence + kMma;
  const std::string use = "mov.b32 %r9, %acc2;\n";
  for (const std::string& wait : {std::string(), Wait(1)}) {
    ExpectFinding(begin + kCommit + wait + use + Wait(0),
                  "a register of a wgmma.mma_async in flight");
  }
  // A group that is not committed is not waited for.
  ExpectFinding(begin + Wait(0) + use + kCommit + Wait(0),
                "a register of a wgmma.mma_async in flight");
  ExpectClean(begin + kCommit + Wait(0) + use + Store("%acc0"), 16);
  ExpectClean(begin + kCommit + "mov.b32 %r9, %acc5;\n" + Wait(0) + Store("%acc0"), 16);
}

TEST(WgmmaRules, WaitGroupLeavesTheNewestGroupsInFlight) {
  const std::string begin =
      kWrite + kPublish + kFence + kMma + kCommit + kOther + kCommit + Wait(1);
  ExpectClean(begin + Store("%acc0") + Wait(0), 16);
  ExpectFinding(begin + Store("%acc4") + Wait(0), "a register of a wgmma.mma_async in flight");
}

TEST(WgmmaRules, FragmentsOfAInFlightMustNotBeUsed) {
  const std::string begin = kWrite + "mov.b32 %acc8, %r2;\n" + kPublish + kFence;
  const std::string fragments = "{%acc8, %acc8, %acc8, %acc8}, %rd2, 1, 1, 1, 0;\n";
  const std::string one = kShape + "{%acc0, %acc1, %acc2, %acc3}, " + fragments;
  const std::string two = kShape + "{%acc4, %acc5, %acc6, %acc7}, " + fragments;
  ExpectFinding(begin + one + "mov.b32 %acc8, 0;\n" + kCommit + Wait(0),
                "a register of a wgmma.mma_async in flight");
  ExpectClean(begin + one + two + kCommit + Wait(0) + "mov.b32 %acc8, 0;\n" + Store("%acc0"), 16);
}

// ---- Shared memory

TEST(WgmmaRules, WritesNeedAProxyFence) {
  ExpectFinding(kWrite + "bar.sync 0;\n" + kFence + kMma + kCommit + Wait(0),
                "asynchronous read after write, without a proxy fence");
}

TEST(WgmmaRules, EveryWarpMustKnowTheWritesOfB) {
  // A's rows are from the warp that reads them.
  const TestRun run =
      RunAll(kWrite + "fence.proxy.async;\n" + kFence + kMma + kCommit + Wait(0) + Store("%acc0"));
  EXPECT_THAT(run.findings,
              ElementsAre(Key(AllOf(HasSubstr("asynchronous read after write, without an order"),
                                    HasSubstr("@%p0 st.shared")))));
  EXPECT_EQ(run.findings.begin()->second, 3 * 16);
}

TEST(WgmmaRules, UnwrittenMemoryIsFound) {
  ExpectFinding(kWrite + "add.u64 %rd2, %rd2, 32;\n" + kPublish + kFence + kMma + kCommit + Wait(0),
                "nothing has written");
}

TEST(WgmmaRules, MatricesInFlightMustNotBeWritten) {
  // The barrier lets all warps issue before the write.
  const std::string begin =
      kWrite + kPublish + kFence + kMma + kCommit + kOther + kCommit + "bar.sync 0;\n";
  const auto write = [](int offset) {
    return "@%p1 st.shared.u32 [%r0+" + std::to_string(offset) + "], %r2;\n";
  };
  const std::string end = Wait(0) + Store("%acc0");
  const std::string found = "write after asynchronous read, without an order";
  ExpectFinding(begin + write(2048) + end, found);
  ExpectFinding(begin + Wait(1) + write(2304) + end, found);
  ExpectFinding(begin + Wait(1) + write(0) + end, found);
  ExpectClean(begin + Wait(1) + write(2048) + end, 16);
  ExpectClean(begin + Wait(0) + write(2304) + end, 16);
}

TEST(WgmmaRules, TheWaitOfOneWarpIsForTheWholeOperation) {
  // Thread 0 writes rows that warp 3 reads, and all of B, without a barrier.
  ExpectClean(kWrite + kPublish + kFence + kMma + kCommit + Wait(0) + R"(
    mov.b32 %r9, 0;
    @%p1 st.shared.u32 [%r0+2032], %r9;
    @%p0 st.shared.v4.u32 [%r1+2048], {%r9, %r9, %r9, %r9};
  )" + Store("%acc0"),
              16);
}

TEST(WgmmaRules, AWarpgroupDoesNotNeedTheOthers) {
  ExpectClean(R"(
    setp.lt.u32 %p2, %tid, 128;
    @%p2 bra FIRST;
    bar.sync 1, 256;
    ret;
    FIRST:
  )" + kWrite + "fence.proxy.async;\nbar.sync 2, 128;\n" +
                  kFence + kMma + kCommit + Wait(0) + Store("%acc0") +
                  "bar.sync 1, 256;\nst.global.b32 [%rd6+512], %acc0;\n",
              16, 256);
}

// ---- The warps of a warpgroup

TEST(WgmmaRules, WarpsMustIssueTheSameInstruction) {
  const TestRun run = RunAll(kWrite + kPublish + kFence + "@%p0 bra OTHER;\n" + kMma +
                             "bra JOIN;\nOTHER:\n" + kMma + "JOIN:\n" + kCommit + Wait(0));
  EXPECT_THAT(run.stop, HasSubstr("different instructions: warp 0 at PTX line"));
}

TEST(WgmmaRules, WarpsMustAgreeOnDescriptorsAndScale) {
  const std::string begin = kWrite + kPublish + kFence;
  const std::string end = kMma + kCommit + Wait(0);
  EXPECT_THAT(RunAll(begin + "@%p0 add.u64 %rd1, %rd1, 1;\n" + end).stop,
              HasSubstr("different descriptors of A"));
  EXPECT_THAT(RunAll(begin + "@%p0 add.u64 %rd2, %rd2, 1;\n" + end).stop,
              HasSubstr("different descriptors of B"));
  const std::string scaled =
      kShape + "{%acc0, %acc1, %acc2, %acc3}, %rd1, %rd2, %p0, 1, 1, 0, 0;\n";
  EXPECT_THAT(RunAll(begin + scaled + kCommit + Wait(0)).stop, HasSubstr("different scale-d"));
}

TEST(WgmmaRules, LanesMustAgree) {
  const std::string begin = kWrite + kPublish + kFence, end = kCommit + Wait(0);
  EXPECT_THAT(RunAll(begin + "@%p1 add.u64 %rd2, %rd2, 1;\n" + kMma + end).stop,
              HasSubstr("lanes have different matrix descriptors"));
  EXPECT_THAT(RunAll(begin + "@!%p1 " + kMma + end).stop, HasSubstr("not all threads of the warp"));
  const std::string scaled =
      kShape + "{%acc0, %acc1, %acc2, %acc3}, %rd1, %rd2, %p1, 1, 1, 0, 0;\n";
  EXPECT_THAT(RunAll(begin + scaled + end).stop, HasSubstr("scale-d differs between the lanes"));
}

TEST(WgmmaRules, AWaitNamesAWarpThatHasNotIssued) {
  const TestRun run = RunAll(kWrite + kPublish + kFence + R"(
    setp.ge.u32 %p2, %tid, 96;
    @%p2 bra END;
  )" + kMma + kCommit + Wait(0) +
                             "END:\n");
  EXPECT_THAT(run.stop, HasSubstr("wgmma.wait_group 0: warp 3 has not issued"));
}

TEST(WgmmaRules, AWarpgroupHasFourWarps) {
  EXPECT_THAT(RunAll(kWrite + kPublish + kFence, 96).stop, HasSubstr("fewer than four warps"));
}

TEST(WgmmaRules, AWarpMustNotEndBeforeItsWait) {
  EXPECT_THAT(RunAll(kWrite + kPublish + kFence + kMma + kCommit).stop,
              HasSubstr("ends before its wgmma"));
}

// ---- Refused forms

TEST(WgmmaRules, UnknownFormsAreRefused) {
  const std::string d4 = "{%acc0, %acc1, %acc2, %acc3}", d2 = "{%acc0, %acc1}";
  const std::string start = "wgmma.mma_async.sync.aligned.", tail = ", %rd1, %rd2, 1";
  for (const std::string& text : {
           start + "m64n8k32.s32.s8.s8 " + d4 + tail,
           start + "m64n8k32.s32.u8.u8.satfinite " + d4 + tail,
           start + "m64n8k256.s32.b1.b1.and.popc " + d4 + tail,
           start + "m64n8k16.f32.bf16.f16 " + d4 + tail + ", 1, 1, 0, 0",
           start + "m64n8k16.f16.bf16.bf16 " + d2 + tail + ", 1, 1, 0, 0",
           start + "m64n8k8.f32.f16.f16 " + d4 + tail + ", 1, 1, 0, 0",
           start + "m64n12k16.f32.f16.f16 " + d4 + tail + ", 1, 1, 0, 0",
           start + "m64n8k16.f32.f16.f16 " + d2 + tail + ", 1, 1, 0, 0",
           start + "m64n8k16.f32.f16.f16 " + d4 + tail + ", 1, 1, 0",
           start + "m64n8k16.f32.f16.f16 " + d4 + tail + ", 1, 2, 0, 0",
           start + "m64n8k16.f32.f16.f16 " + d4 + tail + ", 1, 1, 0, 2",
           start + "m64n8k16.f32.f16.f16 " + d4 + ", {%acc4, %acc5}, %rd2, 1, 1, 1, 0",
           start + "m64n8k16.f32.f16.f16 " + d4 + ", %r1, %rd2, 1, 1, 1, 0, 0",
           start + "m64n8k8.f32.tf32.tf32 " + d4 + tail + ", 1, 1, 0, 0",
           start + "m64n8k32.f32.e4m3.f16 " + d4 + tail + ", 1, 1",
           std::string("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 ") + d4 +
               ", %rd1, %rd2, %r1, 0, 1, 1, 1, 0, 0",
           std::string("wgmma.fence.aligned"),
           std::string("wgmma.wait_group.sync.aligned"),
       }) {
    EXPECT_THAT(RunBody(kWrite + text + ";\n", {.threads = 128}).stop,
                HasSubstr("unknown instruction"))
        << text;
  }
}

TEST(WgmmaRules, DescriptorsOutsideOfTheModelAreRefused) {
  const auto run = [](const std::string& change) {
    return RunAll(kWrite + kPublish + change + kFence + kMma + kCommit + Wait(0)).stop;
  };
  EXPECT_THAT(run("or.b64 %rd2, %rd2, 0x2000000000000;\n"),
              HasSubstr("matrix B: the model has no base offset"));
  EXPECT_THAT(run("or.b64 %rd1, %rd1, 0x4000;\n"),
              HasSubstr("matrix A: the matrix descriptor has bits outside of its fields"));
  EXPECT_THAT(run("add.u64 %rd2, %rd2, 0x1000;\n"), HasSubstr("lies outside of"));
  EXPECT_THAT(run("or.b64 %rd2, %rd2, 0xc000000000000000;\nadd.u64 %rd2, %rd2, 1;\n"),
              HasSubstr("lies too far right"));
}

}  // namespace
}  // namespace ptx
