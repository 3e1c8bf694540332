// cp.async of 4 to 16 bytes with its groups and mbarriers, and st.async.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/model/ptx/bulk/bulk_test_text.h"

namespace ptx {
namespace {

std::vector<uint32_t> Numbers(size_t count) {
  std::vector<uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1);
  return numbers;
}

// %r1 is the address of the lane's bytes in shared memory, %rd1 in %in, %rd2 in %out.
std::string OwnBytes(int bytes) {
  const std::string text = std::to_string(bytes);
  return ".shared .align 16 .b8 words[2048];\nmov.u32 %r9, words;\nmad.lo.u32 %r1, %tid, " + text +
         ", %r9;\nmul.wide.u32 %rd0, %tid, " + text +
         ";\nadd.u64 %rd1, %rd0, %in;\nadd.u64 %rd2, %rd0, %out;\n";
}
// Copies the lane's bytes, which lie at `offset` from %r1 and %rd1.
std::string Copy(int bytes, int offset = 0) {
  const std::string at = std::to_string(offset);
  return std::string("cp.async.") + (bytes == 16 ? "cg" : "ca") + ".shared.global [%r1+" + at +
         "], [%rd1+" + at + "], " + std::to_string(bytes) + ";\n";
}
// Stores the lane's bytes at %out.
std::string StoreOwn(int bytes) {
  std::string text;
  for (int at = 0; at < bytes; at += 4) {
    const std::string offset = std::to_string(at);
    text += "ld.shared.u32 %r2, [%r1+" + offset + "];\nst.global.u32 [%rd2+" + offset + "], %r2;\n";
  }
  return text;
}
constexpr const char* kCommit = "cp.async.commit_group;\n";
constexpr const char* kWaitAll = "cp.async.wait_all;\n";
// So that a read comes before the copy's write, and not before any.
constexpr const char* kClear = "mov.u32 %r3, 0;\nst.shared.v4.u32 [%r1], {%r3, %r3, %r3, %r3};\n";

TEST(CopyAsync, CopiesFourEightAndSixteenBytes) {
  for (const int bytes : {4, 8, 16}) {
    const size_t words = 8 * bytes;
    for (const RunOptions& options : Orders()) {
      const TestRun run = RunBody(
          OwnBytes(bytes) + Copy(bytes) + kCommit + "cp.async.wait_group 0;\n" + StoreOwn(bytes),
          {.in = Numbers(words), .out_words = words, .options = options});
      ASSERT_EQ(Report(run), "");
      EXPECT_EQ(run.out, Numbers(words));
    }
  }
}

TEST(CopyAsync, TheRestOfASmallerSourceIsZero) {
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunBody(OwnBytes(16) +
                                    "and.b32 %r3, %tid, 3;\nshl.b32 %r3, %r3, 2;\n"
                                    "cp.async.cg.shared.global [%r1], [%rd1], 16, %r3;\n" +
                                    kWaitAll + StoreOwn(16),
                                {.in = Numbers(128), .out_words = 128, .options = options});
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 128; ++i) EXPECT_EQ(run.out[i], i % 4 < i / 4 % 4 ? i + 1 : 0) << i;
  }
}

TEST(CopyAsync, ASourceOfNoBytesIsNotRead) {
  const std::string far = OwnBytes(4) + "add.u64 %rd1, %rd1, 0x100000;\n";
  const TestRun run = RunBody(
      far + "cp.async.ca.shared.global [%r1], [%rd1], 4, 0;\n" + kWaitAll + StoreOwn(4), {});
  ASSERT_EQ(Report(run), "");
  EXPECT_EQ(run.out, std::vector<uint32_t>(32));
  EXPECT_TRUE(Contains(RunBody(far + Copy(4) + kWaitAll), "lies outside of the memory"));
}

TEST(CopyAsync, AReadBeforeTheWaitIsFoundInEveryOrder) {
  for (const RunOptions& options : Orders()) {
    const TestLaunch launch{.in = Numbers(128), .out_words = 128, .options = options};
    const std::string start = OwnBytes(16) + kClear + Copy(16) + kCommit;
    EXPECT_TRUE(Contains(RunBody(start + "ld.shared.u32 %r2, [%r1];\n" + kWaitAll, launch),
                         "without an order"));
    EXPECT_TRUE(Contains(RunBody(start + "st.shared.u32 [%r1], %r3;\n" + kWaitAll, launch),
                         "write after write, without an order"));
    EXPECT_EQ(Report(RunBody(start + kWaitAll + "st.shared.u32 [%r1], %r3;\n", launch)), "");
  }
}

TEST(CopyAsync, ASourceThatIsWrittenBeforeTheWaitIsFound) {
  const std::string start = OwnBytes(4) + Copy(4), write = "st.global.u32 [%rd1], %tid;\n";
  for (const RunOptions& options : Orders()) {
    const TestLaunch launch{.in = Numbers(32), .options = options};
    EXPECT_TRUE(Contains(RunBody(start + write + kWaitAll, launch), "without an order"));
    EXPECT_EQ(Report(RunBody(start + kWaitAll + write, launch)), "");
  }
}

TEST(CopyAsync, WaitGroupLeavesTheNewestGroups) {
  const std::string two =
      OwnBytes(16) + kClear + Copy(8) + kCommit + Copy(8, 8) + kCommit + "cp.async.wait_group 1;\n";
  const auto run = [&](const std::string& read) {
    return RunBody(two + read + kWaitAll, {.in = Numbers(128)});
  };
  EXPECT_EQ(Report(run("ld.shared.u32 %r2, [%r1];\n")), "");
  EXPECT_TRUE(Contains(run("ld.shared.u32 %r2, [%r1+8];\n"), "without an order"));
}

TEST(CopyAsync, OnlyWaitAllCoversCopiesWithoutACommit) {
  const std::string start = OwnBytes(16) + kClear + Copy(16), read = "ld.shared.u32 %r2, [%r1];\n";
  const TestLaunch launch{.in = Numbers(128)};
  EXPECT_EQ(Report(RunBody(start + kWaitAll + read, launch)), "");
  EXPECT_TRUE(Contains(RunBody(start + "cp.async.wait_group 0;\n" + read + kWaitAll, launch),
                       "without an order"));
}

TEST(CopyAsync, OtherLanesNeedABarrierAfterTheWait) {
  const std::string start = OwnBytes(4) + Copy(4) + kWaitAll +
                            "xor.b32 %r2, %tid, 1;\nshl.b32 %r2, %r2, 2;\nadd.u32 %r2, %r2, %r9;\n";
  const std::string read = "ld.shared.u32 %r3, [%r2];\nst.global.u32 [%rd2], %r3;\n";
  const TestLaunch launch{.in = Numbers(32)};
  const TestRun run = RunBody(start + "bar.warp.sync -1;\n" + read, launch);
  ASSERT_EQ(Report(run), "");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[i], (i ^ 1) + 1);
  EXPECT_TRUE(Contains(RunBody(start + read, launch), "without an order"));
}

// Warp 0 copies, and `arrive` follows; warp 1 waits for an mbarrier of 32 arrivals and reads.
TestRun RunWithMbarrier(const std::string& arrive, const RunOptions& options) {
  const std::string body = ".shared .align 8 .b8 bar[8];\n" + OwnBytes(4) + R"(
    setp.eq.u32 %p0, %tid, 0;
    @%p0 mbarrier.init.shared.b64 [bar], 32;
    sub.u32 %r4, %r1, 128;
    bar.sync 0;
    setp.ge.u32 %p1, %tid, 32;
    @%p1 bra READ;
  )" + Copy(4) + arrive + R"(
    bra END;
    READ: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;
    @!%p2 bra READ;
    ld.shared.u32 %r2, [%r4];
    st.global.u32 [%rd2+-128], %r2;
    END: bar.sync 0;
  )";
  return RunBody(body, {.in = Numbers(32), .threads = 64, .options = options});
}

TEST(CopyAsync, AnMbarrierCountsTheEndOfCopies) {
  for (const RunOptions& options : Orders()) {
    for (const std::string arrive :
         {"cp.async.mbarrier.arrive.noinc.shared.b64 [bar];\n",
          "cp.async.mbarrier.arrive.shared::cta.b64 [bar];\nmbarrier.arrive.shared.b64 _, [bar];\n",
          "cp.async.commit_group;\ncp.async.mbarrier.arrive.noinc.b64 [bar];\n"}) {
      const TestRun run = RunWithMbarrier(arrive, options);
      ASSERT_EQ(Report(run), "") << arrive;
      EXPECT_EQ(run.out, Numbers(32));
    }
    EXPECT_NE(Report(RunWithMbarrier("mbarrier.arrive.shared.b64 _, [bar];\n", options)), "")
        << "an ordinary arrival does not wait for copies";
  }
}

TEST(CopyAsync, AnArrivalWithoutNoincChangesNoCountInSum) {
  const TestRun run = RunWithMbarrier("cp.async.mbarrier.arrive.shared.b64 [bar];\n", {});
  EXPECT_TRUE(Contains(run, "deadlock")) << Report(run);
}

TEST(CopyAsync, WrongOperandsAreNamed) {
  const auto stop = [](const std::string& text) {
    return RunBody(OwnBytes(16) + text, {.in = Numbers(128)}).stop;
  };
  const auto expect = [&](const std::string& text, const std::string& why) {
    EXPECT_NE(stop(text).find(why), std::string::npos) << text << "\n" << stop(text);
  };
  expect("cp.async.cg.shared.global [%r1+8], [%rd1], 16;", "an address is not a multiple of 16");
  expect("cp.async.ca.shared.global [%r1], [%rd1+4], 8;", "an address is not a multiple of 8");
  for (const std::string text : {"cp.async.ca.shared.global [%r1], [%rd1], 12;",
                                 "cp.async.ca.shared::cluster.global [%r1], [%rd1], 4;",
                                 "cp.async.ca.shared.global [%r1], [%rd1], 4, %p0;",
                                 "cp.async.cs.shared.global [%r1], [%rd1], 4;",
                                 "cp.async.mbarrier.arrive.noinc.shared.b32 [%r1];"}) {
    expect(text, "unknown instruction");
  }
}

TEST(CopyAsync, ACtaEndsAfterItsCopies) {
  EXPECT_TRUE(Contains(
      RunBody(OwnBytes(4) + Copy(4), {.in = Numbers(32), .options = {.mode = Mode::kLate}}),
      "the CTA ends while asynchronous copies write its shared memory"));
}

// CTA 0 stores into CTA 1 at %r1, with the mbarrier at %r2 there; CTA 1 expects 512 bytes, and
// `read` follows there.
TestRun RunToPeer(const std::string& store, const std::string& read, const RunOptions& options) {
  return RunBody(SharedText() + "setp.eq.u32 %p1, %cta, 0;\n@!%p1 bra EXPECTED;\nbra FILLED;\n" +
                     "EXPECTED:\n" + ExpectText(512) + FillText(128) + R"(
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r1, %data, 1;
    mapa.shared::cluster.u32 %r2, %bar, 1;
    mov.u32 %r3, %tid;
    add.u32 %r4, %tid, 100;
    add.u32 %r5, %tid, 200;
    add.u32 %r6, %tid, 300;
    mad.lo.u32 %r1, %tid, 16, %r1;
    @!%p1 bra READ;
  )" + store + "bra COPIED;\nREAD:\n" +
                     read + "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n",
                 {.in = std::vector<uint32_t>(128),
                  .out_words = 256,
                  .ctas = 2,
                  .cluster = 2,
                  .options = options});
}

constexpr const char* kStoreAsync = "st.async.shared::cluster.mbarrier::complete_tx::bytes.";

TEST(StoreAsync, StoresCompleteTheirBytesInAnotherCta) {
  const std::string stores[] = {
      std::string(kStoreAsync) + "v4.b32 [%r1], {%r3, %r4, %r5, %r6}, [%r2];\n",
      std::string("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r1], %r3, "
                  "[%r2];\n") +
          kStoreAsync + "s32 [%r1+4], %r4, [%r2];\nmov.b64 %rd1, {%r5, %r6};\n" + kStoreAsync +
          "b64 [%r1+8], %rd1, [%r2];\n"};
  for (const std::string& store : stores) {
    for (const RunOptions& options : Orders()) {
      const TestRun run = RunToPeer(store, WaitText() + CopyOutText(128), options);
      ASSERT_EQ(Report(run), "");
      for (uint32_t i = 0; i < 128; ++i) EXPECT_EQ(run.out[128 + i], i / 4 + i % 4 * 100) << i;
    }
  }
}

TEST(StoreAsync, AReadBeforeTheWaitIsFoundInEveryOrder) {
  const std::string store =
      std::string(kStoreAsync) + "v4.b32 [%r1], {%r3, %r4, %r5, %r6}, [%r2];\n";
  for (const RunOptions& options : Orders()) {
    const TestRun run =
        RunToPeer(store, "ld.shared.u32 %r7, [%data];\nCOPIED:\n" + WaitText(), options);
    EXPECT_TRUE(Contains(run, "without an order")) << Report(run);
  }
}

TEST(StoreAsync, FewerBytesThanExpectedKeepThePhaseOpen) {
  const TestRun run = RunToPeer(std::string(kStoreAsync) + "b32 [%r1], %r3, [%r2];\n",
                                WaitText() + CopyOutText(128), {});
  EXPECT_TRUE(Contains(run, "deadlock")) << Report(run);
}

TEST(StoreAsync, DataAndMbarrierAreInOneCta) {
  const TestRun run = RunToPeer(std::string(kStoreAsync) + "b32 [%r1], %r3, [%bar];\n",
                                WaitText() + CopyOutText(128), {});
  EXPECT_TRUE(Contains(run, "the data and the mbarrier are in different CTAs")) << Report(run);
}

TEST(StoreAsync, TheInitOfTheMbarrierMustBeKnown) {
  // CTA 1 says through a flag that its mbarrier is there.
  const auto body = [](const std::string& order) {
    return R"(
      .shared .align 8 .b8 bar[16];
      setp.ne.u32 %p0, %tid, 0;
      @%p0 bra END;
      setp.eq.u32 %p1, %cta, 0;
      @%p1 bra POLL;
      mbarrier.init.shared.b64 [bar], 1;
      mbarrier.arrive.expect_tx.shared.b64 _, [bar], 4;
      st.)" +
           order + R"(.cluster.global.u32 [%in], 1;
      WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [bar], 0;
      @!%p2 bra WAIT;
      bra END;
      POLL: ld.acquire.cluster.global.u32 %r3, [%in];
      setp.eq.u32 %p2, %r3, 0;
      @%p2 bra POLL;
      mov.u32 %r1, bar;
      mapa.shared::cluster.u32 %r1, %r1, 1;
      st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1+8], %r3, [%r1];
      END: barrier.cluster.arrive.aligned;
      barrier.cluster.wait.aligned;
    )";
  };
  for (const RunOptions& options : Orders()) {
    const TestLaunch launch{.in = {0}, .ctas = 2, .cluster = 2, .options = options};
    EXPECT_EQ(Report(RunBody(body("release"), launch)), "");
    EXPECT_TRUE(Contains(RunBody(body("relaxed"), launch),
                         "an mbarrier is used, but its init is not known"));
  }
}

TEST(StoreAsync, UnknownFormsAreNamed) {
  for (const std::string text :
       {"st.async.shared::cta.mbarrier::complete_tx::bytes.b32 [%r1], %r3, [%r2];\n",
        "st.async.shared::cluster.b32 [%r1], %r3, [%r2];\n",
        "st.async.release.sys.global.b32 [%out], %r3;\n",
        "red.async.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r3, [%r2];\n"}) {
    EXPECT_TRUE(Contains(RunBody(text), "unknown instruction")) << text;
  }
}

}  // namespace
}  // namespace ptx
