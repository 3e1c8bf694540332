// Findings of the race check inside one GPU.
#include "tests/model/ptx/state/races.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/ptx/engine/test_kernel.h"

namespace ptx {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Key;

constexpr char kShared[] = ".shared .align 16 .b8 words[1024];\nmov.u32 %r9, words;\n";

std::string First(const TestRun& run) {
  if (!run.stop.empty()) return run.stop;
  return run.findings.empty() ? "" : run.findings.begin()->first;
}

TEST(Races, ClocksKnowLanesOnTheirOwn) {
  Clocks clocks;
  clocks.Learn(3, 5, 0x1);
  EXPECT_TRUE(clocks.Knows(3, 5, 0x1));
  EXPECT_TRUE(clocks.Knows(3, 4, 0x1));
  EXPECT_FALSE(clocks.Knows(3, 6, 0x1));
  EXPECT_FALSE(clocks.Knows(3, 5, 0x3));
  clocks.Learn(3, 5, 0xfffffffe);
  EXPECT_TRUE(clocks.Knows(3, 5));
  Clocks other;
  other.Join(clocks);
  EXPECT_TRUE(other.Knows(3, 5));
  EXPECT_FALSE(other.Knows(2, 1));
}

// Warp 0 writes a word, `between` runs in both warps, warp 1 reads it.
std::string TwoWarps(const std::string& between) {
  return kShared + std::string(R"(
    setp.ge.u32 %p0, %tid, 32;
    shl.b32 %r1, %tid, 2;
    and.b32 %r1, %r1, 127;
    add.u32 %r1, %r1, %r9;
    @!%p0 st.shared.u32 [%r1], %tid;
  )") + between +
         "\n@%p0 ld.shared.u32 %r2, [%r1];";
}

TEST(Races, ABarrierOrdersTwoWarps) {
  EXPECT_EQ(First(RunBody(TwoWarps("bar.sync 0;"), {.threads = 64})), "");
}

TEST(Races, WithoutABarrierTheReadIsFoundInEveryOrder) {
  for (uint64_t seed = 1; seed < 9; ++seed) {
    const TestRun run = RunBody(TwoWarps(""), {.threads = 64, .options = {.seed = seed}});
    EXPECT_THAT(
        run.findings,
        Contains(Key(HasSubstr("a release after the first and an acquire before the second"))));
  }
}

// Lane 0 writes a word, `between` follows, lane 1 reads it.
std::string TwoLanes(const std::string& between) {
  return kShared + std::string(R"(
    setp.eq.u32 %p0, %tid, 0;
    setp.eq.u32 %p1, %tid, 1;
    @%p0 st.shared.u32 [%r9], %tid;
  )") + between +
         "\n@%p1 ld.shared.u32 %r2, [%r9];";
}

TEST(Races, LanesOfAWarpNeedABarrierToo) {
  EXPECT_EQ(First(RunBody(TwoLanes("bar.warp.sync 0xffffffff;"))), "");
  EXPECT_EQ(First(RunBody(TwoLanes("bar.sync 0;"))), "");
  const std::string finding = First(RunBody(TwoLanes("")));
  EXPECT_THAT(finding, HasSubstr("read after write by other lanes of the warp"));
  EXPECT_THAT(finding, HasSubstr("bar.warp.sync between them would order them"));
  EXPECT_THAT(First(RunBody(TwoLanes("@%p0 bar.warp.sync 0x1;"))), HasSubstr("bar.warp.sync"));
  EXPECT_THAT(First(RunBody(TwoLanes("bar.warp.sync 0x1;"))),
              HasSubstr("run by lanes outside of its member mask"));
}

TEST(Races, AnArrivalPassesOnlyItsOwnLanesWork) {
  // All lanes of warp 0 write; lane 0 alone arrives; warp 1 waits and reads what lane 5 wrote.
  const auto body = [](const std::string& before_arrive) {
    return kShared + std::string(R"(
      .shared .align 8 .b64 bar;
      mov.u32 %r8, bar;
      setp.eq.u32 %p0, %tid, 0;
      @%p0 mbarrier.init.shared::cta.b64 [%r8], 1;
      bar.sync 0;
      setp.ge.u32 %p1, %tid, 32;
      @%p1 bra READER;
      shl.b32 %r1, %tid, 2;
      add.u32 %r1, %r1, %r9;
      st.shared.u32 [%r1], %tid;
    )") + before_arrive +
           R"(
      @%p0 mbarrier.arrive.shared::cta.b64 _, [%r8];
      bra END;
      READER: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], 0;
      @!%p2 bra READER;
      ld.shared.u32 %r2, [%r9+20];
      END:)";
  };
  EXPECT_EQ(First(RunBody(body("bar.warp.sync 0xffffffff;"), {.threads = 64})), "");
  EXPECT_THAT(First(RunBody(body(""), {.threads = 64})),
              HasSubstr("read after write, without an order"));
}

TEST(Races, NeighboursInACellDoNotConflict) {
  EXPECT_EQ(First(RunBody(R"(
    mul.wide.u32 %rd0, %cta, 2;
    add.u64 %rd0, %rd0, %out;
    cvt.u16.u32 %h0, %cta;
    setp.eq.u32 %p0, %tid, 0;
    @%p0 st.global.u16 [%rd0], %h0;)",
                          {.ctas = 8})),
            "");
}

TEST(Races, ReadsOfUnwrittenMemoryAreFound) {
  EXPECT_THAT(First(RunBody(kShared + std::string("ld.shared.u32 %r0, [%r9+4];"))),
              HasSubstr("reads shared memory that nothing has written"));
}

TEST(Races, StrongAccessesOfTooNarrowAScopeRace) {
  const auto body = [](const std::string& scope) {
    return "setp.eq.u32 %p0, %tid, 0;\n@%p0 red.relaxed." + scope + ".global.add.u32 [%out], 1;";
  };
  EXPECT_EQ(First(RunBody(body("gpu"), {.ctas = 2})), "");
  EXPECT_THAT(First(RunBody(body("cta"), {.ctas = 2})),
              HasSubstr("write after write, without an order"));
}

TEST(Races, AMixOfStrongAndWeakAccessesRaces) {
  const std::string body = R"(
    setp.ne.u32 %p0, %tid, 0;
    @%p0 bra END;
    setp.eq.u32 %p1, %cta, 0;
    @%p1 st.relaxed.gpu.global.u32 [%out], 1;
    @!%p1 ld.global.u32 %r0, [%out];
    END:)";
  EXPECT_THAT(First(RunBody(body, {.ctas = 2})), HasSubstr("without an order"));
}

TEST(Races, MbarrierInitNeedsAnOrder) {
  const auto body = [](const std::string& between) {
    return R"(
      .shared .align 8 .b64 bar;
      mov.u32 %r8, bar;
      setp.eq.u32 %p0, %tid, 0;
      @%p0 mbarrier.init.shared::cta.b64 [%r8], 64;
    )" + between +
           R"(
      mbarrier.arrive.shared::cta.b64 _, [%r8];)";
  };
  EXPECT_EQ(First(RunBody(body("bar.sync 0;"), {.threads = 64})), "");
}

}  // namespace
}  // namespace ptx
