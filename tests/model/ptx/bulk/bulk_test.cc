// Bulk copies of consecutive bytes, bulk groups, and hints.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/model/ptx/bulk/bulk_test_text.h"

namespace ptx {
namespace {

std::vector<uint32_t> Numbers(size_t count, uint32_t first = 1) {
  std::vector<uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

constexpr const char* kFence = "fence.proxy.async;\nbar.warp.sync -1;\n";
constexpr const char* kCommit = "cp.async.bulk.commit_group;\n";
constexpr const char* kLoad =
    "@%first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ";

// A store of 256 bytes: from this offset in shared memory to the same one of %out, by lanes with
// the predicate.
std::string StoreText(uint32_t offset, const std::string& guard = "@%first ") {
  const std::string at = std::to_string(offset);
  return guard + "cp.async.bulk.global.shared::cta.bulk_group [%out+" + at + "], [%data+" + at +
         "], 256;\n";
}
std::string Filled(uint32_t words = 256) { return SharedText() + FillText(words) + kFence; }

TEST(Bulk, LoadsCompleteTheirBytes) {
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunBody(
        SharedText() + ExpectText(1600) + "mov.u32 %r1, 1584;\n" + kLoad +
            "[%data], [%in+16], %r1, [%bar];\n" +
            "@%first cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[data_bytes+1584], [%in], 16, [bar_bytes], %rd1;\n" +
            WaitText() + CopyOutText(400),
        {.in = Numbers(400), .out_words = 400, .options = options});
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 396; ++i) EXPECT_EQ(run.out[i], i + 5);
    for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(run.out[396 + i], i + 1);
  }
}

TEST(Bulk, MulticastReachesEachCtaOfTheMask) {
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunBody(
        SharedText() + ExpectText(128) +
            "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
            "setp.eq.u32 %p1, %cta, 0;\nand.pred %p1, %p1, %first;\nmov.b16 %h1, 3;\n"
            "@%p1 "
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
            "[%data], [%in], 128, [%bar], %h1;\n" +
            WaitText() + CopyOutText(32) +
            "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n",
        {.in = Numbers(32), .out_words = 64, .ctas = 2, .cluster = 2, .options = options});
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(run.out[i], i % 32 + 1);
  }
}

TEST(Bulk, TheEndOfAMulticastIsKnownForTheOwnCtaOnly) {
  // CTA 0 sees its own data, and then writes into CTA 1's, which may still arrive.
  const std::string body =
      SharedText() + ExpectText(128) +
      "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"
      "setp.eq.u32 %p1, %cta, 0;\nand.pred %p1, %p1, %first;\nmov.b16 %h1, 3;\n"
      "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%data], [%in], 128, [%bar], %h1;\n" +
      WaitText() +
      "mapa.shared::cluster.u32 %r1, %data, 1;\n@%p1 st.shared::cluster.u32 [%r1], 7;\n"
      "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n";
  const TestRun run = RunBody(body, {.in = Numbers(32), .ctas = 2, .cluster = 2});
  EXPECT_TRUE(Contains(run, "write after asynchronous write, without an order")) << Report(run);
}

TEST(Bulk, StoresReachGlobalMemory) {
  for (const RunOptions& options : Orders()) {
    const TestRun run =
        RunBody(Filled(600) +
                    "@%first cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%out+16], "
                    "[%data], 2384, %rd1;\n" +
                    kCommit + "cp.async.bulk.wait_group 0;\n",
                {.in = Numbers(600), .out_words = 600, .options = options});
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 596; ++i) EXPECT_EQ(run.out[4 + i], i + 1);
    EXPECT_EQ(run.out[3], 0xddddddddu);
  }
}

TEST(Bulk, AStoreByAWholeWarpIsOneStore) {
  const TestRun run =
      RunBody(Filled(64) + StoreText(0, "") + kCommit + "cp.async.bulk.wait_group 0;\n",
              {.in = Numbers(64), .out_words = 64});
  ASSERT_EQ(Report(run), "");
  EXPECT_EQ(run.out, Numbers(64));
}

// CTA 0 does something with shared memory of CTA 1, at %r1 (its mbarrier: %r2). CTA 1 waits for 256
// bytes.
TestRun RunToPeer(const std::string& copy, const RunOptions& options,
                  const std::string& at_end = "") {
  return RunBody(
      Filled(64) + ExpectText(256) +
          "mapa.shared::cluster.u32 %r1, %data, 1;\nmapa.shared::cluster.u32 %r2, %bar, 1;\n"
          "setp.eq.u32 %p2, %cta, 1;\nsetp.eq.u32 %p1, %cta, 0;\nand.pred %p1, %p1, %first;\n"
          "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" +
          copy + "@!%p2 bra DONE;\n" + WaitText() + CopyOutText(64) +
          "DONE:\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n" + at_end,
      {.in = Numbers(64), .out_words = 128, .ctas = 2, .cluster = 2, .options = options});
}

TEST(Bulk, CopiesToAnotherCtaCompleteThere) {
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunToPeer(
        "add.u32 %r3, %r1, 16;\n@%p1 "
        "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r3], [%data], "
        "240, [%r2];\n"
        "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], "
        "[%data+240], 16, [%r2];\n",
        options);
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(run.out[64 + i], (i + 60) % 64 + 1);
  }
}

constexpr const char* kCopyToPeer =
    "@%p1 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%data], "
    "256, [%r2];\n";

TEST(Bulk, TheDestinationsWaitOrdersACopyToAnotherCta) {
  // Its words in CTA 1, and after CTA 1 has waited, its source in CTA 0.
  const std::string read = "@%p2 ld.shared.u32 %r4, [%data];\n";
  EXPECT_NE(Report(RunToPeer(kCopyToPeer + read, {})), "");
  EXPECT_NE(Report(RunToPeer(std::string(kCopyToPeer) + "@%p1 st.shared.u32 [%data], 7;\n", {})),
            "");
  EXPECT_EQ(Report(RunToPeer(kCopyToPeer, {}, "@%p1 st.shared.u32 [%data], 7;\n")), "");
}

TEST(Bulk, ReductionsInAnotherCtaAddUp) {
  const auto reduce = [](const std::string& form) {
    const TestRun run = RunToPeer(
        "@%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes." +
            form + " [%r1], [%data], 256, [%r2];\n",
        {});
    EXPECT_EQ(Report(run), "");
    return std::vector<uint32_t>(run.out.begin() + 64, run.out.end());
  };
  const auto sums = reduce("add.u32"), bits = reduce("xor.b32"), kept = reduce("max.s32");
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(sums[i], 2 * (i + 1));
    EXPECT_EQ(bits[i], 0u);
    EXPECT_EQ(kept[i], i + 1);
  }
}

// Words of %out after a reduction with `data`; both begin as 4 words each.
std::vector<uint32_t> ReduceText(const std::string& form, const std::vector<uint32_t>& old,
                                 const std::vector<uint32_t>& data) {
  std::vector<uint32_t> in(data);
  in.insert(in.end(), old.begin(), old.end());
  const TestRun run =
      RunBody(SharedText() + FillText(4) +
                  "@%first ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+16];\n"
                  "@%first st.global.v4.u32 [%out], {%r1, %r2, %r3, %r4};\n" +
                  kFence + "@%first cp.reduce.async.bulk.global.shared::cta.bulk_group." + form +
                  " [%out], [%data], 16;\n" + kCommit + "cp.async.bulk.wait_group 0;\n",
              {.in = in, .out_words = 4});
  EXPECT_EQ(Report(run), "") << form;
  return run.out;
}

TEST(Bulk, ReductionsFollowTheirTypes) {
  using Words = std::vector<uint32_t>;
  const Words old = {5, 0xffffffff, 7, 0}, data = {3, 2, 7, 0x80000000};
  EXPECT_EQ(ReduceText("add.u32", old, data), (Words{8, 1, 14, 0x80000000}));
  EXPECT_EQ(ReduceText("add.u64", old, data), (Words{8, 1, 14, 0x80000000}));
  EXPECT_EQ(ReduceText("add.u64", {0xffffffff, 0, 0, 0}, {1, 0, 0, 0}), (Words{0, 1, 0, 0}));
  EXPECT_EQ(ReduceText("min.u32", old, data), (Words{3, 2, 7, 0}));
  EXPECT_EQ(ReduceText("min.s32", old, data), (Words{3, 0xffffffff, 7, 0x80000000}));
  EXPECT_EQ(ReduceText("max.s64", old, data), (Words{3, 2, 7, 0}));
  EXPECT_EQ(ReduceText("inc.u32", old, data), (Words{0, 0, 0, 1}));
  EXPECT_EQ(ReduceText("dec.u32", old, data), (Words{3, 2, 6, 0x80000000}));
  EXPECT_EQ(ReduceText("and.b32", old, data), (Words{1, 2, 7, 0}));
  EXPECT_EQ(ReduceText("or.b64", old, data), (Words{7, 0xffffffff, 7, 0x80000000}));
}

TEST(Bulk, FloatReductionsRoundAndFlushAsTheHardware) {
  using Words = std::vector<uint32_t>;
  // 1 + 2^-24, a subnormal and zero, infinities, and the least normal number less a subnormal one.
  EXPECT_EQ(ReduceText("add.f32", {0x3f800000, 0x00000001, 0x7f800000, 0x00800001},
                       {0x33800000, 0x80000000, 0xff800000, 0x80800000}),
            (Words{0x3f800000, 0, 0x7fffffff, 0}));
  EXPECT_EQ(ReduceText("add.f64", {0, 0x3ff00000, 1, 0}, {0, 0x40000000, 1, 0}),
            (Words{0, 0x40080000, 2, 0}));
  // f16: 1 + 2, and the sum of two subnormal numbers; bf16: 1 + 2^-8 ties to even.
  EXPECT_EQ(ReduceText("add.noftz.f16", {0x00013c00, 0, 0, 0}, {0x00014000, 0, 0, 0}),
            (Words{0x00024200, 0, 0, 0}));
  EXPECT_EQ(ReduceText("add.noftz.bf16", {0x3f813f80, 0, 0, 0}, {0x3b803b80, 0, 0, 0}),
            (Words{0x3f823f80, 0, 0, 0}));
  // -0 is less than +0, and a NaN loses.
  EXPECT_EQ(ReduceText("min.f16", {0x80000000, 0x7e003c00, 0xffff, 0},
                       {0x00008000, 0x3c007e00, 0xffff, 0}),
            (Words{0x80008000, 0x3c003c00, 0x7fff, 0}));
  EXPECT_EQ(ReduceText("max.bf16", {0x80000000, 0xbf803f80, 0, 0}, {0x00008000, 0x3f80bf80, 0, 0}),
            (Words{0x00000000, 0x3f803f80, 0, 0}));
}

TEST(Bulk, ReductionsFromManyCtasDoNotRace) {
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunBody(
        Filled(32) +
            "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%out], [%data], 128;\n" +
            kCommit + "cp.async.bulk.wait_group 0;\n",
        {.in = Numbers(32), .ctas = 3, .options = options});
    ASSERT_EQ(Report(run), "");
    for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[i], 0xdddddddd + 3 * 32 * (i + 1));
  }
}

TEST(Bulk, StoresOfTwoCtasToOnePlaceRace) {
  const TestRun run = RunBody(Filled(64) + StoreText(0) + kCommit + "cp.async.bulk.wait_group 0;\n",
                              {.in = Numbers(64), .out_words = 64, .ctas = 2});
  EXPECT_TRUE(Contains(run, "asynchronous write after asynchronous write, without an order"))
      << Report(run);
}

// ---- Groups

std::string Overwrite(uint32_t offset, const std::string& guard = "@%first ") {
  return guard + "st.shared.u32 [%data+" + std::to_string(offset) + "], 7;\n";
}
TestRun RunGroups(const std::string& body) {
  return RunBody(Filled() + body, {.in = Numbers(256), .out_words = 256});
}
constexpr const char* kWaitAll = "cp.async.bulk.wait_group 0;\n";

TEST(Bulk, TheNewestGroupsMayGoOn) {
  const std::string two = StoreText(0) + kCommit + StoreText(256) + kCommit;
  EXPECT_EQ(Report(RunGroups(two + "cp.async.bulk.wait_group.read 1;\n" + Overwrite(0) + kWaitAll)),
            "");
  EXPECT_TRUE(
      Contains(RunGroups(two + "cp.async.bulk.wait_group.read 1;\n" + Overwrite(256) + kWaitAll),
               "write after asynchronous read, without an order"));
  EXPECT_EQ(Report(RunGroups(two + "cp.async.bulk.wait_group.read 0;\n" + Overwrite(0) +
                             Overwrite(256) + kWaitAll)),
            "");
  EXPECT_EQ(
      Report(RunGroups(two + "cp.async.bulk.wait_group 1;\n@%first ld.global.u32 %r1, [%out];\n" +
                       kWaitAll)),
      "");
  EXPECT_NE(Report(RunGroups(
                two + "cp.async.bulk.wait_group 1;\n@%first ld.global.u32 %r1, [%out+256];\n" +
                kWaitAll)),
            "");
}

TEST(Bulk, AGroupCanBeEmpty) {
  const std::string one = StoreText(0) + kCommit;
  EXPECT_NE(Report(RunGroups(one + "cp.async.bulk.wait_group.read 1;\n" + Overwrite(0) + kWaitAll)),
            "");
  EXPECT_EQ(Report(RunGroups(one + kCommit + "cp.async.bulk.wait_group.read 1;\n" + Overwrite(0) +
                             kWaitAll)),
            "");
}

TEST(Bulk, AStoreWithoutACommitIsInNoGroup) {
  EXPECT_NE(Report(RunGroups(StoreText(0) + "cp.async.bulk.wait_group.read 0;\n" + Overwrite(0) +
                             kCommit + kWaitAll)),
            "");
  EXPECT_EQ(Report(RunGroups(StoreText(0) + StoreText(256) + kCommit +
                             "cp.async.bulk.wait_group.read 0;\n" + Overwrite(0) + Overwrite(256))),
            "");
}

TEST(Bulk, LanesWaitForTheirOwnGroups) {
  const std::string other = "setp.eq.u32 %p1, %tid, 1;\n";
  // Lane 1 has stored nothing.
  EXPECT_NE(Report(RunGroups(other + StoreText(0) + kCommit + kWaitAll + Overwrite(0, "@%p1 "))),
            "");
  EXPECT_EQ(Report(RunGroups(other + StoreText(0) + kCommit + kWaitAll + "bar.warp.sync -1;\n" +
                             Overwrite(0, "@%p1 "))),
            "");
}

TEST(Bulk, LanesThatShareAStoreGoOnAlone) {
  const std::string other = "setp.eq.u32 %p1, %tid, 1;\n",
                    together = other + StoreText(0, "") + StoreText(256);
  // Both lanes have issued the first store, only lane 0 the second.
  EXPECT_EQ(Report(RunGroups(together + kCommit + kWaitAll + Overwrite(0, "@%p1 "))), "");
  EXPECT_NE(Report(RunGroups(together + kCommit + kWaitAll + Overwrite(256, "@%p1 "))), "");
  // Lane 1 commits first: its later wait does not cover the second store.
  const std::string apart = other + StoreText(0, "") + "@%p1 cp.async.bulk.commit_group;\n" +
                            StoreText(256) + "@!%p1 cp.async.bulk.commit_group;\n";
  EXPECT_EQ(Report(RunGroups(apart + kWaitAll + Overwrite(0, "@%p1 "))), "");
  EXPECT_NE(Report(RunGroups(apart + kWaitAll + Overwrite(256, "@%p1 "))), "");
  EXPECT_EQ(Report(RunGroups(apart + kWaitAll + Overwrite(256))), "");
  // Two lanes only: once lane 1 has committed, lane 0 is alone.
  const std::string pair = other + "setp.lt.u32 %p2, %tid, 2;\n" + StoreText(0, "@%p2 ") +
                           "@%p1 cp.async.bulk.commit_group;\n" + StoreText(256) +
                           "@!%p1 cp.async.bulk.commit_group;\n";
  EXPECT_EQ(Report(RunGroups(pair + kWaitAll + Overwrite(0, "@%p1 "))), "");
  EXPECT_NE(Report(RunGroups(pair + kWaitAll + Overwrite(256, "@%p1 "))), "");
}

TEST(Bulk, AFullWaitCoversAllWrites) {
  const std::string body =
      Filled(2048) +
      "@%first cp.async.bulk.global.shared::cta.bulk_group [%out], [%data], 8192;\n" + kCommit +
      kWaitAll +
      "@%first ld.global.u32 %r1, [%out+8188];\n@%first ld.global.u32 %r1, [%out+4096];\n";
  for (const RunOptions& options : Orders()) {
    EXPECT_EQ(Report(RunBody(body, {.in = Numbers(2048), .out_words = 2048, .options = options})),
              "");
  }
}

TEST(Bulk, ALanesOwnAccessesComeFirst) {
  const std::string refill = "@%first ld.shared.u32 %r1, [%data];\n@%first fence.proxy.async;\n" +
                             ExpectText(16) + kLoad + "[%data], [%in], 16, [%bar];\n";
  EXPECT_EQ(Report(RunGroups(refill + WaitText())), "");
  const std::string other =
      "setp.eq.u32 %p1, %tid, 1;\n@%p1 ld.shared.u32 %r1, [%data];\n@%p1 fence.proxy.async;\n";
  EXPECT_TRUE(Contains(
      RunGroups(other + ExpectText(16) + kLoad + "[%data], [%in], 16, [%bar];\n" + WaitText()),
      "asynchronous write after read, without an order"));
}

TEST(Bulk, TheInitOfTheMbarrierMustBeKnown) {
  const std::string init =
      ".shared .align 8 .b8 late[8];\nsetp.eq.u32 %p1, %tid, 1;\n@%p1 mbarrier.init.shared.b64 "
      "[late], 1;\n";
  const std::string load = std::string(kLoad) +
                           "[%data], [%in], 16, [late];\nbar.warp.sync -1;\n"
                           "@%first mbarrier.arrive.expect_tx.shared.b64 _, [late], 16;\nWAIT:\n"
                           "mbarrier.try_wait.parity.shared.b64 %p2, [late], 0;\n@!%p2 bra WAIT;\n";
  EXPECT_EQ(Report(RunGroups(init + "bar.warp.sync -1;\n" + load)), "");
  EXPECT_TRUE(Contains(RunGroups(init + load), "an mbarrier is used, but its init is not known"));
}

TEST(Bulk, AWaitForReadsLeavesTheWritesToALaterWait) {
  std::string many;
  for (int i = 0; i < 4; ++i) {
    many += StoreText(256 * i) + kCommit + "cp.async.bulk.wait_group.read 0;\n";
  }
  for (const RunOptions& options : Orders()) {
    const TestLaunch launch{.in = Numbers(256), .out_words = 256, .options = options};
    EXPECT_NE(Report(RunBody(Filled() + many + "@%first ld.global.u32 %r1, [%out];\n" + kWaitAll,
                             launch)),
              "");
    EXPECT_EQ(
        Report(RunBody(
            Filled() + many + kWaitAll +
                "@%first ld.global.u32 %r1, [%out];\n@%first ld.global.u32 %r1, [%out+768];\n",
            launch)),
        "");
  }
}

TEST(Bulk, ThePolicyDecidesIfACompletionIsAProxyFence) {
  // CTA 0 stores, waits, and sets a flag; CTA 1 loads what it stored.
  const std::string body = Filled(64) + "setp.eq.u32 %p1, %cta, 0;\n@!%p1 bra LOAD;\n" +
                           StoreText(0) + kCommit + kWaitAll +
                           "@%first st.release.gpu.global.u32 [%out+256], 1;\nbra DONE;\nLOAD:\n" +
                           ExpectText(256) +
                           "@!%first bra LOADED;\nPOLL:\nld.acquire.gpu.global.u32 %r1, "
                           "[%out+256];\nsetp.ne.u32 %p2, %r1, 1;\n@%p2 bra POLL;\n" +
                           "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                           "[%data], [%out], 256, [%bar];\nLOADED:\n" +
                           WaitText() + "DONE:\n";
  TestLaunch launch{.in = Numbers(64), .out_words = 128, .ctas = 2};
  EXPECT_TRUE(Contains(RunBody(body, launch), "of another CTA, without a proxy fence"));
  launch.policy.store_completion_fences = true;
  EXPECT_EQ(Report(RunBody(body, launch)), "");
}

TEST(Bulk, ACtaEndsAfterTheReadsOfItsStores) {
  const TestLaunch launch{.in = Numbers(256), .out_words = 256, .options = {.mode = Mode::kLate}};
  EXPECT_TRUE(Contains(RunBody(Filled() + StoreText(0) + kCommit, launch),
                       "the CTA ends while bulk stores read its shared memory"));
  EXPECT_EQ(Report(RunBody(Filled() + StoreText(0) + kCommit + "cp.async.bulk.wait_group.read 0;\n",
                           launch)),
            "");
}

// ---- Hints

TEST(Bulk, HintsChangeNothing) {
  const TestRun run = RunBody(Filled(4) + R"(
prefetch.global.L2 [%in];
prefetch.L1 [%in+1000000];
prefetch.global.L2::evict_last [%in];
prefetchu.L1 [%in];
applypriority.global.L2::evict_normal [%in], 128;
cp.async.bulk.prefetch.L2.global [%in], 16;
cp.async.bulk.prefetch.L2.global.L2::cache_hint [%in], 16, %rd1;
)" + CopyOutText(4),
                              {.in = Numbers(32)});
  ASSERT_EQ(Report(run), "");
  EXPECT_EQ(run.out[3], 4u);
}

TEST(Bulk, DiscardedBytesHaveNoValue) {
  const TestRun run = RunBody(
      "setp.eq.u32 %p1, %tid, 0;\n@%p1 st.global.u32 [%out], 5;\n@%p1 discard.global.L2 [%out], "
      "128;\n",
      {.out_words = 64});
  ASSERT_EQ(Report(run), "");
  EXPECT_NE(run.out[0], 5u);
  EXPECT_EQ(run.out[32], 0xddddddddu);
}

// ---- What is refused

std::string Refusal(const std::string& text) {
  return RunBody(Filled(64) + ExpectText(256) + text, {.in = Numbers(64), .out_words = 64}).stop;
}

TEST(Bulk, WrongOperandsAreRefused) {
  const auto expect = [](const std::string& text, const std::string& why) {
    const std::string stop = Refusal(text);
    EXPECT_NE(stop.find(why), std::string::npos) << text << "\n" << stop;
  };
  const std::string load = kLoad;
  expect(load + "[%data], [%in], 24, [%bar];",
         "the size is 24; a multiple of 16 above 0 is needed");
  expect(load + "[%data], [%in], 0, [%bar];", "the size is 0");
  expect(load + "[%data+8], [%in], 16, [%bar];", "is not a multiple of 16");
  expect(load + "[%data], [%in+8], 16, [%bar];", "the global address is not a multiple of 16");
  expect(load + "[%data], [%in], 272, [%bar];", "lies outside of the memory that this GPU may use");
  expect(load + "[%data], [%in], 16, [%bar+16];", "there is no mbarrier at");
  expect("cp.async.bulk.global.shared::cta.bulk_group [%out], [%data+32768], 16;",
         "lies outside of");
  expect(
      "@%first cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[%data+1024], [%data], 16, [%bar];",
      "the destination must lie in another CTA of the cluster");
  expect("applypriority.L2::evict_normal [%in+64], 128;", "the address is not a multiple of 128");
}

TEST(Bulk, ACtaThatHasEndedGetsNothing) {
  const std::string body =
      SharedText() +
      "setp.eq.u32 %p1, %cta, 1;\n@%p1 ret;\nmapa.shared::cluster.u32 %r1, %data, 1;\n"
      "mapa.shared::cluster.u32 %r2, %bar, 1;\n@%first cp.async.bulk.shared::cluster.global"
      ".mbarrier::complete_tx::bytes [%r1], [%in], 16, [%r2];\n";
  const RunOptions first_is_late{.starved_gpu = 0, .starved_cta = 0};
  const TestRun run =
      RunBody(body, {.in = Numbers(4), .ctas = 2, .cluster = 2, .options = first_is_late});
  EXPECT_TRUE(Contains(run, "CTA 1 of the cluster, which has ended")) << Report(run);
}

TEST(Bulk, UnknownFormsAreNamed) {
  for (const char* const text :
       {"cp.async.bulk.global.shared::cta.mbarrier::complete_tx::bytes [%out], [%data], 16, "
        "[%bar];",
        "cp.async.bulk.shared::cluster.global.bulk_group [%data], [%in], 16;",
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes.multicast::cluster [%data], "
        "[%in], 16, [%bar], %h1;",
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%out], [%data], 16, %h1;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f16 [%out], [%data], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.noftz.f16 [%out], [%data], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s64 [%out], [%data], 16;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.and.u32 [%out], [%data], 16;",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.f32 "
        "[%r1], [%data], 16, [%bar];",
        "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.min.u64 "
        "[%r1], [%data], 16, [%bar];",
        "cp.async.bulk.wait_group %r1;", "prefetch.shared.L1 [%data];",
        "discard.global.L2 [%out], 64;"}) {
    const std::string stop = Refusal(text);
    EXPECT_NE(stop.find("unknown instruction"), std::string::npos) << text << "\n" << stop;
  }
}

}  // namespace
}  // namespace ptx
