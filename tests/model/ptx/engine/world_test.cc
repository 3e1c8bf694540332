// Progress of warps, lanes and CTAs, and the ends of runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/ptx/engine/test_kernel.h"

namespace ptx {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Stores %r0 of each thread at %out.
const std::string kStore = R"(
mul.wide.u32 %rd0, %tid, 4;
add.u64 %rd0, %rd0, %out;
st.global.u32 [%rd0], %r0;
)";

TEST(World, EveryThreadStoresItsOwnWord) {
  const TestRun run = RunBody("add.u32 %r0, %tid, 100;" + kStore, {.out_words = 64, .threads = 64});
  EXPECT_EQ(run.stop, "");
  EXPECT_THAT(run.findings, IsEmpty());
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(run.out[i], 100 + i);
}

TEST(World, LanesThatPartMeetAgain) {
  const TestRun run = RunBody(R"(
    and.b32 %r1, %tid, 1;
    setp.eq.u32 %p0, %r1, 0;
    @%p0 bra EVEN;
    mov.u32 %r0, 1;
    bra BOTH;
    EVEN: mov.u32 %r0, 2;
    BOTH: activemask.b32 %r2;
    add.u32 %r0, %r0, %r2;)" + kStore);
  EXPECT_EQ(run.stop, "");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[i], (i % 2 ? 1 : 2) + kAllLanes);
}

TEST(World, APollingLaneLetsTheOtherLanesGoOn) {
  const TestRun run = RunBody(R"(
    setp.eq.u32 %p0, %tid, 0;
    @!%p0 bra OTHERS;
    POLL: ld.acquire.gpu.global.u32 %r0, [%out];
    setp.ne.u32 %p1, %r0, 5;
    @%p1 bra POLL;
    bra END;
    OTHERS: setp.ne.u32 %p2, %tid, 1;
    @%p2 bra END;
    st.release.gpu.global.u32 [%out], 5;
    END:)");
  EXPECT_EQ(run.stop, "");
  EXPECT_EQ(run.out[0], 5u);
}

TEST(World, RunsAreCountedByOpcode) {
  const TestRun run = RunBody(R"(
    setp.lt.u32 %p0, %tid, 3;
    @%p0 xor.b32 %r1, %tid, 1;
    setp.lt.u32 %p1, %tid, 0;
    @%p1 xor.b32 %r1, %tid, 2;
    bar.sync 0;)",
                              {.threads = 64});
  EXPECT_EQ(run.opcodes.at("xor.b32").runs, 4);
  EXPECT_EQ(run.opcodes.at("xor.b32").taken, 1);
  EXPECT_EQ(run.opcodes.at("xor.b32").lanes, 3);
  EXPECT_EQ(run.opcodes.at("bar.sync").runs, 2);
  EXPECT_EQ(run.opcodes.at("bar.sync").lanes, 64);
  EXPECT_FALSE(run.opcodes.contains("add.u32"));
}

TEST(World, PollsWithoutSuccessAreCounted) {
  // The phase ends only once the wait has failed, because the lane that waits goes first.
  const TestRun run = RunBody(R"(
    .shared .align 8 .b64 bar;
    mov.u32 %r1, bar;
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra LATE;
    mbarrier.init.shared::cta.b64 [%r1], 1;
    WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra WAIT;
    bra END;
    LATE: setp.ne.u32 %p2, %tid, 1;
    @%p2 bra END;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.shared::cta.b64 _, [%r1];
    END:)");
  EXPECT_EQ(run.stop, "");
  const RunCounts& waits = run.opcodes.at("mbarrier.try_wait.parity.shared::cta.b64");
  EXPECT_GE(waits.repeats, 1);
  EXPECT_EQ(waits.runs - waits.repeats, 1);
}

TEST(World, ADeadlockNamesEveryWaiter) {
  const TestRun run = RunBody("bar.sync 1, 64;", {.threads = 32});
  EXPECT_THAT(run.stop, HasSubstr("deadlock"));
  EXPECT_THAT(run.stop, HasSubstr("CTA 0,0,0 warp 0"));
  EXPECT_THAT(run.stop, HasSubstr("`bar.sync 1, 64`, waits for barrier 1"));
}

TEST(World, CtasThatHaveNoRoomWait) {
  // Each CTA waits until all have arrived, which needs all of them to be resident.
  const std::string body = R"(
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra END;
    atom.add.acq_rel.gpu.global.u32 %r0, [%out], 1;
    POLL: ld.acquire.gpu.global.u32 %r0, [%out];
    setp.ne.u32 %p1, %r0, 0xdddddde1;
    @%p1 bra POLL;
    END:)";
  EXPECT_EQ(RunBody(body, {.ctas = 4, .options = {.resident_ctas = 4}}).stop, "");
  const TestRun stuck = RunBody(body, {.ctas = 4, .options = {.resident_ctas = 3}});
  EXPECT_THAT(stuck.stop, HasSubstr("1 clusters of test have no room (3 CTAs are resident)"));
}

TEST(World, AStarvedCtaGoesOnLast) {
  // Each CTA notes how many were before it.
  const std::string body = R"(
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra END;
    atom.add.relaxed.gpu.global.u32 %r0, [%in], 1;
    mul.wide.u32 %rd0, %cta, 4;
    add.u64 %rd0, %rd0, %out;
    st.global.u32 [%rd0], %r0;
    END:)";
  for (uint64_t seed = 1; seed < 9; ++seed) {
    const TestRun run =
        RunBody(body, {.in = {0},
                       .out_words = 8,
                       .ctas = 8,
                       .options = {.seed = seed, .starved_gpu = 0, .starved_cta = 2}});
    EXPECT_EQ(run.out[2], 7u);
  }
}

TEST(World, AnEndlessLoopEndsAtTheLimit) {
  const TestRun run = RunBody("LOOP: bra LOOP;", {.options = {.instruction_limit = 1000}});
  EXPECT_THAT(run.stop, HasSubstr("more than 1000 instructions"));
}

TEST(World, AnUnknownInstructionIsNamedWithItsLine) {
  EXPECT_THAT(
      RunBody("add.u32 %r0, %r0, 1;\ntcgen05.alloc.cta_group::1.sync.aligned.b32 [%r0], 32;").stop,
      HasSubstr("unknown instruction `tcgen05.alloc"));
  EXPECT_THAT(RunBody("ld.global.L3::keep.u32 %r0, [%in];").stop, HasSubstr("(.L3::keep)"));
}

TEST(World, RegistersThatDecGivesBackServeInc) {
  const std::string body = R"(
    shr.u32 %r1, %tid, 7;
    setp.eq.u32 %p0, %r1, 0;
    @%p0 bra LITTLE;
    setmaxnreg.inc.sync.aligned.u32 232;
    bra END;
    LITTLE: setmaxnreg.dec.sync.aligned.u32 40;
    END:)";
  EXPECT_EQ(RunBody(body, {.threads = 384}).stop, "") << "of 168 each: 128 more, 2 * 64 less";
  EXPECT_THAT(RunBody(body, {.threads = 256}).stop, HasSubstr("the warp has 255 registers"));
  const TestRun stuck = RunBody("setmaxnreg.inc.sync.aligned.u32 240;", {.threads = 384});
  EXPECT_THAT(stuck.stop, HasSubstr("waits for setmaxnreg.inc 240"));
}

TEST(World, ATrapStopsTheRunWithItsPlace) {
  EXPECT_THAT(RunBody("trap;").stop, HasSubstr("`trap`: GPU 0, CTA 0,0,0, warp 0: trap"));
}

TEST(World, AccessesOutsideOfMemoryAreNamed) {
  EXPECT_THAT(RunBody("ld.global.u32 %r0, [%out+128];").stop,
              HasSubstr("lies outside of the memory"));
  EXPECT_THAT(RunBody("ld.global.u32 %r0, [%out+2];").stop, HasSubstr("is not a multiple of 4"));
  EXPECT_THAT(RunBody("mov.u32 %r0, 64; st.shared.u32 [%r0], %r0;").stop,
              HasSubstr("shared address 0x40"));
}

}  // namespace
}  // namespace ptx
