// Phases and counts of mbarriers, and who may use them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/ptx/bulk/bulk_test_text.h"

namespace ptx {
namespace {

using testing::HasSubstr;

// Lane 0 runs the text, with an mbarrier of this count at `bar`. After a %p1 that Note names, the
// next word of %out is 1 if it holds, or else 0.
TestRun RunAlone(int count, const std::string& text) {
  return RunBody(
      ".shared .align 8 .b8 bar[32];\nsetp.ne.u32 %p0, %tid, 0;\n@%p0 bra END;\n"
      "mov.u64 %rd63, %out;\nmbarrier.init.shared.b64 [bar], " +
          std::to_string(count) + ";\n" + text + "END:\n",
      {});
}
const std::string kNote =
    "selp.u32 %r0, 1, 0, %p1;\nst.global.u32 [%rd63], %r0;\nadd.u64 %rd63, %rd63, 4;\n";
std::string Over(int parity) {
  return "mbarrier.test_wait.parity.shared.b64 %p1, [bar], " + std::to_string(parity) + ";\n" +
         kNote;
}
const std::string kArrive = "mbarrier.arrive.shared.b64 _, [bar];\n";

// Expects these words to be noted.
void ExpectNotes(int count, const std::string& text, const std::vector<uint32_t>& notes) {
  const TestRun run = RunAlone(count, text);
  ASSERT_EQ(Report(run), "") << text;
  EXPECT_EQ(std::vector<uint32_t>(run.out.begin(), run.out.begin() + notes.size()), notes) << text;
  EXPECT_EQ(run.out[notes.size()], 0xddddddddu);
}

TEST(Mbarrier, PhasesHaveAParity) {
  // The phase before the first one is over, and has the parity 1.
  ExpectNotes(1, Over(0) + Over(1) + kArrive + Over(0) + Over(1) + kArrive + Over(0) + Over(1),
              {0, 1, 1, 0, 0, 1});
}

TEST(Mbarrier, AStateNamesThePhaseOfItsArrival) {
  const std::string test = "mbarrier.test_wait.shared::cta.b64 %p1, [bar], %rd1;\n" + kNote;
  ExpectNotes(2,
              "mbarrier.arrive.shared::cta.b64 %rd1, [bar];\n" + test +
                  "mbarrier.arrive.release.cta.shared::cta.b64 %rd2, [bar];\n" + test +
                  "mbarrier.arrive.b64 %rd1, [bar];\n" + test,
              {0, 1, 0});
}

TEST(Mbarrier, AnArrivalMayCountMoreThanOne) {
  const std::string three = "mbarrier.arrive.shared.b64 _, [bar], 3;\n";
  ExpectNotes(4, three + Over(0) + kArrive + Over(0) + kArrive + three + Over(1), {0, 1, 1});
  ExpectNotes(3, "mov.u32 %r1, 3;\nmbarrier.arrive.shared.b64 %rd1, [bar], %r1;\n" + Over(0), {1});
}

TEST(Mbarrier, APhaseEndsWhenBothCountsAreZero) {
  const std::string complete = "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [bar], 16;\n",
                    expect = "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [bar], 16;\n";
  ExpectNotes(1, expect + kArrive + Over(0) + complete + Over(0), {0, 1});
  ExpectNotes(1, expect + complete + Over(0) + kArrive + Over(0), {0, 1});
  ExpectNotes(1, complete + Over(0) + expect + Over(0) + kArrive + Over(0), {0, 0, 1});
  ExpectNotes(1, expect + expect + kArrive + complete + Over(0) + complete + Over(0), {0, 1});
  ExpectNotes(1,
              "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 32;\n" + complete + Over(0) +
                  complete + Over(0),
              {0, 1});
  ExpectNotes(2,
              "mbarrier.arrive.expect_tx.release.cta.shared.b64 %rd1, [bar], 16;\n" + complete +
                  Over(0) + kArrive + Over(0),
              {0, 1});
}

TEST(Mbarrier, ADropCountsOnceAndThenNoMore) {
  const std::string drop = "mbarrier.arrive_drop.shared.b64 _, [bar];\n";
  ExpectNotes(2, drop + Over(0) + kArrive + Over(0) + kArrive + Over(1), {0, 1, 1});
  ExpectNotes(
      3,
      "mbarrier.arrive_drop.shared.b64 %rd1, [bar], 2;\n" + kArrive + Over(0) + kArrive + Over(1),
      {1, 1});
  ExpectNotes(2,
              "mbarrier.arrive_drop.expect_tx.shared.b64 _, [bar], 16;\n" + kArrive + Over(0) +
                  "mbarrier.complete_tx.shared.b64 [bar], 16;\n" + Over(0) + kArrive + Over(1),
              {0, 1, 1});
}

TEST(Mbarrier, AnInitAfterInvalStartsAnew) {
  ExpectNotes(1,
              kArrive + Over(0) +
                  "mbarrier.inval.shared.b64 [bar];\nmbarrier.init.shared.b64 [bar], 2;\n" +
                  Over(0) + kArrive + Over(0) + kArrive + Over(0),
              {1, 0, 0, 1});
}

TEST(Mbarrier, LanesThatArriveTogetherCountEach) {
  const TestRun run = RunBody(R"(
    .shared .align 8 .b8 bar[8];
    setp.eq.u32 %p0, %tid, 0;
    @%p0 mbarrier.init.shared.b64 [bar], 32;
    bar.warp.sync -1;
    mbarrier.arrive.shared.b64 _, [bar];
    mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0, 1000;
    selp.u32 %r0, 1, 0, %p1;
    mul.wide.u32 %rd0, %tid, 4;
    add.u64 %rd0, %rd0, %out;
    st.global.u32 [%rd0], %r0;)");
  ASSERT_EQ(Report(run), "");
  EXPECT_EQ(run.out, std::vector<uint32_t>(32, 1));
}

// CTA 1 writes a word and arrives at CTA 0's mbarrier; CTA 0 waits and reads.
TestRun RunRemote(const std::string& arrive, const std::string& wait, const RunOptions& options) {
  return RunBody(R"(
    .shared .align 8 .b8 bar[8];
    setp.ne.u32 %p0, %tid, 0;
    @!%p0 mbarrier.init.shared.b64 [bar], 1;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    @%p0 bra END;
    mov.u32 %r1, bar;
    mapa.shared::cluster.u32 %r1, %r1, 0;
    setp.eq.u32 %p1, %cta, 0;
    @%p1 bra WAIT;
    st.global.u32 [%out+64], 7;
  )" + arrive + R"(
    bra END;
    WAIT: mbarrier.try_wait.parity)" +
                     wait + R"(.b64 %p2, [bar], 0;
    @!%p2 bra WAIT;
    ld.global.u32 %r2, [%out+64];
    st.global.u32 [%out], %r2;
    END:
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
  )",
                 {.ctas = 2, .cluster = 2, .options = options});
}

TEST(Mbarrier, AnotherCtaArrivesThroughMapa) {
  const std::string release = "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1];\n",
                    relaxed = "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%r1];\n";
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunRemote(release, ".acquire.cluster.shared::cta", options);
    ASSERT_EQ(Report(run), "");
    EXPECT_EQ(run.out[0], 7u);
    EXPECT_EQ(Report(RunRemote("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r1], 1;\n",
                               ".acquire.cluster.shared::cta", options)),
              "");
    for (const TestRun& racing : {RunRemote(relaxed, ".acquire.cluster.shared::cta", options),
                                  RunRemote(release, ".relaxed.cluster.shared::cta", options)}) {
      EXPECT_TRUE(Contains(racing, "read after write, without an order")) << Report(racing);
    }
  }
}

TEST(Mbarrier, AnExpectationOfAnotherCtaCounts) {
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunRemote(
        "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r1], 16;\n"
        "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r1], 16;\n",
        ".acquire.cluster.shared::cta", options);
    ASSERT_EQ(Report(run), "");
    EXPECT_EQ(run.out[0], 7u);
  }
}

TEST(Mbarrier, TooManyArrivalsAreNamed) {
  EXPECT_THAT(RunAlone(2, "mbarrier.arrive.shared.b64 _, [bar], 3;\n").stop,
              HasSubstr("has more arrivals than its count of 2"));
  EXPECT_THAT(RunAlone(2, kArrive + "mbarrier.arrive.shared.b64 _, [bar], 2;\n").stop,
              HasSubstr("has more arrivals than its count of 2"));
  // The bytes keep the phase open, and its one arrival has come.
  EXPECT_THAT(RunAlone(1, "mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;\n" + kArrive).stop,
              HasSubstr("has more arrivals than its count of 1"));
}

TEST(Mbarrier, TheTxCountHasARange) {
  EXPECT_EQ(RunAlone(1, "mbarrier.expect_tx.shared.b64 [bar], 1048575;\n").stop, "");
  EXPECT_THAT(RunAlone(1, "mbarrier.expect_tx.shared.b64 [bar], 1048576;\n").stop,
              HasSubstr("leaves its range: 1048576"));
  EXPECT_THAT(RunAlone(1, "mbarrier.complete_tx.shared.b64 [bar], 1048576;\n").stop,
              HasSubstr("leaves its range: -1048576"));
}

TEST(Mbarrier, WrongUsesAreNamed) {
  EXPECT_THAT(RunAlone(0, "").stop, HasSubstr("the count is 0"));
  EXPECT_THAT(RunAlone(1 << 20, "").stop, HasSubstr("the count is 1048576"));
  EXPECT_EQ(RunAlone((1 << 20) - 1, "").stop, "");
  EXPECT_THAT(RunAlone(1, "mbarrier.init.shared.b64 [bar+4], 1;\n").stop,
              HasSubstr("an mbarrier is 8-byte aligned"));
  EXPECT_THAT(RunAlone(1, "mbarrier.arrive.shared.b64 _, [bar+8];\n").stop,
              HasSubstr("does not exist"));
  EXPECT_THAT(RunAlone(1, "mbarrier.inval.shared.b64 [bar];\n" + kArrive).stop,
              HasSubstr("does not exist"));
  EXPECT_THAT(RunAlone(1, "mbarrier.pending_count.b64 %r1, %rd1;\n").stop,
              HasSubstr("is not in the model"));
  for (const std::string text :
       {"mbarrier.arrive.noComplete.shared.b64 %rd1, [bar], 1;\n",
        "mbarrier.arrive.expect_tx.shared.b64 _, [bar];\n", "mbarrier.wait.shared.b64 [bar];\n",
        "mbarrier.init.shared.b32 [bar], 1;\n", "mbarrier.test_wait.shared.b64 %p1, [bar];\n"}) {
    EXPECT_THAT(RunAlone(1, text).stop, HasSubstr("unknown instruction")) << text;
  }
}

TEST(Mbarrier, AWaitWithoutAnEndIsNamed) {
  const TestRun run =
      RunAlone(1, "WAIT: mbarrier.try_wait.parity.shared.b64 %p1, [bar], 0;\n@!%p1 bra WAIT;\n");
  EXPECT_THAT(run.stop, HasSubstr("deadlock"));
  EXPECT_THAT(run.stop, HasSubstr("WAIT"));
}

TEST(Mbarrier, LanesThatDoNotKnowTheInitAreFound) {
  const auto body = [](const std::string& between) {
    return ".shared .align 8 .b8 bar[8];\nsetp.eq.u32 %p0, %tid, 0;\n"
           "@%p0 mbarrier.init.shared.b64 [bar], 32;\n" +
           between + "mbarrier.arrive.shared.b64 _, [bar];\n";
  };
  EXPECT_EQ(Report(RunBody(body("bar.warp.sync -1;\n"))), "");
  const TestRun run = RunBody(body(""));
  EXPECT_TRUE(Contains(run, "an mbarrier is used, but its init is not known"));
  EXPECT_TRUE(Contains(run, "fence.mbarrier_init and a barrier between them would order them"));
}

TEST(Mbarrier, WarpsThatDoNotKnowTheInitAreFound) {
  // A flag in shared memory says that the mbarrier is there.
  const auto body = [](const std::string& set, const std::string& poll) {
    return R"(
      .shared .align 8 .b8 bar[16];
      setp.eq.u32 %p0, %tid, 0;
      @%p0 st.shared.u32 [bar+8], 0;
      bar.sync 0;
      setp.eq.u32 %p1, %tid, 32;
      @%p1 bra POLL;
      @!%p0 bra END;
      mbarrier.init.shared.b64 [bar], 1;
    )" + set +
           R"(.shared.u32 [bar+8], 1;
      bra END;
    POLL: )" +
           poll +
           R"(.shared.u32 %r0, [bar+8];
      setp.eq.u32 %p2, %r0, 0;
      @%p2 bra POLL;
      mbarrier.arrive.shared.b64 _, [bar];
    END:)";
  };
  for (const RunOptions& options : Orders()) {
    const TestLaunch launch{.threads = 64, .options = options};
    EXPECT_EQ(Report(RunBody(body("st.release.cta", "ld.acquire.cta"), launch)), "");
    EXPECT_TRUE(Contains(RunBody(body("st.relaxed.cta", "ld.acquire.cta"), launch),
                         "an mbarrier is used, but its init is not known"));
    EXPECT_TRUE(Contains(RunBody(body("st.release.cta", "ld.relaxed.cta"), launch),
                         "an mbarrier is used, but its init is not known"));
  }
}

TEST(Mbarrier, AnInitOverDataNeedsAnOrder) {
  const auto body = [](const std::string& between) {
    return ".shared .align 8 .b8 bar[8];\nsetp.eq.u32 %p0, %tid, 0;\nsetp.eq.u32 %p1, %tid, 1;\n"
           "@%p1 st.shared.u32 [bar], 7;\n" +
           between + "@%p0 mbarrier.init.shared.b64 [bar], 1;\n";
  };
  EXPECT_EQ(Report(RunBody(body("bar.warp.sync -1;\n"))), "");
  EXPECT_TRUE(Contains(RunBody(body("")), "write after write by other lanes"));
}

}  // namespace
}  // namespace ptx
