// Barriers of CTAs and clusters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/ptx/bulk/bulk_test_text.h"

namespace ptx {
namespace {

using testing::HasSubstr;

// Each of three warps has its own code, at W0, W1 and W2. %r1 is the address of the lane's word,
// which all warps share.
TestRun RunWarps(const std::string& first, const std::string& second, const std::string& third,
                 const RunOptions& options = {}) {
  return RunBody(R"(
    .shared .align 16 .b8 words[1024];
    mov.u32 %r9, words;
    and.b32 %r1, %tid, 31;
    shl.b32 %r1, %r1, 2;
    cvt.u64.u32 %rd1, %r1;
    add.u64 %rd1, %rd1, %out;
    add.u32 %r1, %r1, %r9;
    shr.u32 %r2, %tid, 5;
    setp.eq.u32 %p1, %r2, 1;
    setp.eq.u32 %p2, %r2, 2;
    @%p1 bra W1;
    @%p2 bra W2;
  )" + first + "bra END;\nW1:\n" +
                     second + "bra END;\nW2:\n" + third + "END:\n",
                 {.threads = 96, .options = options});
}
constexpr const char* kWrite = "st.shared.u32 [%r1], %tid;\n";
constexpr const char* kRead = "ld.shared.u32 %r3, [%r1];\nst.global.u32 [%rd1], %r3;\n";

void ExpectRead(const TestRun& run) {
  ASSERT_EQ(Report(run), "");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[i], i);
}

TEST(Barrier, ANumberOfThreadsMeets) {
  const std::string sync = "bar.sync 1, 64;\n";
  for (const RunOptions& options : Orders()) {
    ExpectRead(RunWarps(kWrite + sync, sync + kRead, "", options));
    ExpectRead(RunWarps(kWrite + sync,
                        "mov.u32 %r4, 1;\nmov.u32 %r5, 64;\n"
                        "barrier.cta.sync.aligned %r4, %r5;\n" +
                            std::string(kRead),
                        "", options));
    EXPECT_NE(Report(RunWarps(kWrite + sync, sync, kRead, options)), "")
        << "the third warp is not part of the barrier";
  }
}

TEST(Barrier, AnArrivalGoesOnAndPassesOnWhatItsWarpDid) {
  for (const RunOptions& options : Orders()) {
    ExpectRead(RunWarps(std::string(kWrite) + "bar.arrive 1, 64;\n",
                        "bar.sync 1, 64;\n" + std::string(kRead), "", options));
    // Two barriers: the slot is full, the slot is empty.
    ExpectRead(RunWarps(std::string(kWrite) + "bar.arrive 1, 64;\nbar.sync 2, 64;\n"
                                              "st.shared.u32 [%r1], 99;\n",
                        "bar.sync 1, 64;\n" + std::string(kRead) + "bar.arrive 2, 64;\n", "",
                        options));
    EXPECT_TRUE(Contains(RunWarps(std::string(kWrite) + "bar.arrive 1, 64;\nst.shared.u32 [%r1], "
                                                        "99;\n",
                                  "bar.sync 1, 64;\n" + std::string(kRead), "", options),
                         "without an order"))
        << "an arrival does not wait for the reader";
    EXPECT_NE(Report(RunWarps("bar.arrive 1, 64;\n" + std::string(kRead),
                              std::string(kWrite) + "bar.sync 1, 64;\n", "", options)),
              "")
        << "an arrival learns nothing";
  }
}

TEST(Barrier, WarpsThatHaveEndedAreNotWaitedFor) {
  for (const RunOptions& options : Orders()) {
    ExpectRead(RunWarps(std::string(kWrite) + "bar.sync 0;\n", "bar.sync 0;\n" + std::string(kRead),
                        "ret;\n", options));
  }
  EXPECT_THAT(RunWarps("bar.sync 0, 96;\n", "bar.sync 0, 96;\n", "ret;\n").stop,
              HasSubstr("waits for barrier 0"))
      << "a number is a number";
}

TEST(Barrier, BarriersAreUsedAgain) {
  const std::string turns = R"(
    mov.u32 %r7, 0;
    LOOP: bar.sync 3;
    @!%p1 st.shared.u32 [%r1], %r7;
    bar.sync 3;
    @%p1 ld.shared.u32 %r3, [%r1];
    add.u32 %r7, %r7, 1;
    setp.lt.u32 %p3, %r7, 5;
    @%p3 bra LOOP;
    @%p1 st.global.u32 [%rd1], %r3;
  )";
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunBody(R"(
      .shared .align 16 .b8 words[1024];
      mov.u32 %r9, words;
      and.b32 %r1, %tid, 31;
      shl.b32 %r1, %r1, 2;
      cvt.u64.u32 %rd1, %r1;
      add.u64 %rd1, %rd1, %out;
      add.u32 %r1, %r1, %r9;
      setp.ge.u32 %p1, %tid, 32;
    )" + turns,
                                {.threads = 64, .options = options});
    ASSERT_EQ(Report(run), "");
    EXPECT_EQ(run.out, std::vector<uint32_t>(32, 4));
  }
}

TEST(Barrier, WrongNumbersAreNamed) {
  EXPECT_THAT(RunWarps("bar.sync 1, 64;\n", "bar.sync 1, 96;\n", "").stop,
              HasSubstr("threads, because of others that have arrived, and this warp says"));
  EXPECT_THAT(RunWarps("bar.sync 1, 64;\n", "bar.sync 1;\n", "").stop,
              HasSubstr("because of others that have arrived"));
  EXPECT_THAT(RunWarps("bar.sync 1, 40;\n", "", "").stop,
              HasSubstr("the number of threads is not a multiple of 32"));
  EXPECT_THAT(RunWarps("bar.sync 16;\n", "", "").stop,
              HasSubstr("the barrier is 16; there are 0 to 15"));
  EXPECT_THAT(RunWarps("bar.sync 1, 64;\n", "bar.sync 2, 64;\n", "").stop,
              HasSubstr("waits for barrier 2"));
  EXPECT_THAT(RunWarps("bar.red.popc.u32 %r3, 0, %p1;\n", "", "").stop,
              HasSubstr("unknown instruction"));
}

// CTA 1 writes a word of CTA 0's shared memory and one of global memory; CTA 0 reads both.
TestRun RunCluster(const std::string& arrive, const std::string& wait, const RunOptions& options) {
  return RunBody(R"(
    .shared .align 8 .b8 word[8];
    setp.eq.u32 %p0, %tid, 0;
    setp.eq.u32 %p1, %cta, 1;
    and.pred %p1, %p1, %p0;
    mov.u32 %r1, word;
    mapa.shared::cluster.u32 %r1, %r1, 0;
    @%p1 st.shared::cluster.u32 [%r1], 7;
    @%p1 st.global.u32 [%out+64], 8;
  )" + arrive + wait +
                     R"(
    setp.eq.u32 %p2, %cta, 0;
    and.pred %p2, %p2, %p0;
    @%p2 ld.shared.u32 %r2, [word];
    @%p2 st.global.u32 [%out], %r2;
    @%p2 ld.global.u32 %r2, [%out+64];
    @%p2 st.global.u32 [%out+4], %r2;
  )",
                 {.ctas = 2, .cluster = 2, .options = options});
}

TEST(Barrier, AClusterBarrierOrdersItsCtas) {
  for (const RunOptions& options : Orders()) {
    for (const std::string arrive :
         {"barrier.cluster.arrive.aligned;\n", "barrier.cluster.arrive.release.aligned;\n",
          "barrier.cluster.arrive;\n"}) {
      const TestRun run = RunCluster(arrive, "barrier.cluster.wait.acquire.aligned;\n", options);
      ASSERT_EQ(Report(run), "");
      EXPECT_EQ(run.out[0], 7u);
      EXPECT_EQ(run.out[1], 8u);
    }
    const TestRun relaxed = RunCluster("barrier.cluster.arrive.relaxed.aligned;\n",
                                       "barrier.cluster.wait.aligned;\n", options);
    EXPECT_TRUE(Contains(relaxed, "read after write, without an order")) << Report(relaxed);
    EXPECT_EQ(relaxed.findings.size(), 2u);
  }
}

TEST(Barrier, AFenceOfInitsCrossesARelaxedClusterBarrier) {
  const auto run =
      [](const std::string& fence, const std::string& arrive, const RunOptions& options) {
        return RunBody(R"(
      .shared .align 8 .b8 bar[8];
      setp.eq.u32 %p0, %tid, 0;
      @%p0 mbarrier.init.shared.b64 [bar], 2;
    )" + fence + arrive + R"(
      barrier.cluster.wait.acquire.aligned;
      mov.u32 %r1, bar;
      mapa.shared::cluster.u32 %r1, %r1, 0;
      @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];
      barrier.cluster.arrive.aligned;
      barrier.cluster.wait.aligned;
    )",
                       {.ctas = 2, .cluster = 2, .options = options});
      };
  const std::string fence = "fence.mbarrier_init.release.cluster;\n",
                    relaxed = "barrier.cluster.arrive.relaxed.aligned;\n",
                    release = "barrier.cluster.arrive.release.aligned;\n";
  for (const RunOptions& options : Orders()) {
    EXPECT_EQ(Report(run(fence, relaxed, options)), "");
    EXPECT_EQ(Report(run("@%p0 " + fence, relaxed, options)), "");
    EXPECT_EQ(Report(run("", release, options)), "");
    EXPECT_TRUE(Contains(run("", relaxed, options), "an mbarrier is used, but its init is not"));
  }
}

TEST(Barrier, TheInitsFenceCoversNoOtherWrites) {
  const std::string arrive =
      "fence.mbarrier_init.release.cluster;\n"
      "barrier.cluster.arrive.relaxed.aligned;\n";
  EXPECT_TRUE(Contains(RunCluster(arrive, "barrier.cluster.wait.aligned;\n", {}),
                       "read after write, without an order"));
}

TEST(Barrier, ArrivalsAndWaitsAtTheClusterBarrierComeInPairs) {
  const TestLaunch launch{.ctas = 2, .cluster = 2};
  // CTA 1 does not arrive, so the phase is the same at the second arrival.
  EXPECT_THAT(RunBody("setp.eq.u32 %p0, %cta, 0;\n@!%p0 bra WAIT;\nbarrier.cluster.arrive.aligned;"
                      "\nbarrier.cluster.arrive.aligned;\nWAIT: bar.sync 1, 64;",
                      launch)
                  .stop,
              HasSubstr("the warp arrives twice at one phase of the cluster barrier"));
  EXPECT_THAT(RunBody("barrier.cluster.wait.aligned;", launch).stop,
              HasSubstr("waits at a cluster barrier that it has not arrived at"));
}

TEST(Barrier, AClusterBarrierDoesNotWaitForCtasThatHaveEnded) {
  for (const RunOptions& options : Orders()) {
    EXPECT_EQ(Report(RunBody("setp.eq.u32 %p0, %cta, 1;\n@%p0 ret;\n"
                             "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;",
                             {.ctas = 2, .cluster = 2, .options = options})),
              "");
  }
}

TEST(Barrier, BarriersOfTwoCtasAreApart) {
  EXPECT_THAT(RunBody("setp.eq.u32 %p0, %cta, 0;\n@%p0 bra ONE;\nbar.sync 1, 32;\nbra END;\nONE: "
                      "bar.sync 1, 64;\nEND:",
                      {.ctas = 2})
                  .stop,
              HasSubstr("CTA 0,0,0 warp 0"));
}

}  // namespace
}  // namespace ptx
