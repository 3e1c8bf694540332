// Proxy fences between generic and asynchronous accesses, and the choices of Policy.
#include <gtest/gtest.h>

#include "tests/model/ptx/bulk/bulk_test_text.h"

namespace ptx {
namespace {

constexpr const char* kNoFence = "without a proxy fence";
constexpr const char* kAnyFence = "fence.proxy.async;\n";
constexpr const char* kGlobalFence = "fence.proxy.async.global;\n";
constexpr const char* kSharedFence = "fence.proxy.async.shared::cta;\n";
constexpr const char* kLoad =
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%data], [%out], 128, "
    "[%bar];\n";
constexpr const char* kStore =
    "cp.async.bulk.global.shared::cta.bulk_group [%out], [%data], 128;\n"
    "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n";

// ---- Global memory: CTA 0 writes, and releases a flag; CTA 1 acquires it, and loads.

struct Steps {
  std::string after_write, before_acquire, after_acquire;
};

TestRun RunMessage(const std::string& write, const Steps& steps, TestLaunch launch = {}) {
  launch.in.resize(32, 5);
  launch.out_words = 128;
  launch.ctas = 2;
  return RunBody(SharedText() + FillText(32) + "fence.proxy.async;\nbar.warp.sync -1;\n" +
                     "setp.eq.u32 %p1, %cta, 0;\n@!%p1 bra READ;\nmul.wide.u32 %rd1, %tid, 4;\n"
                     "add.u64 %rd1, %rd1, %out;\n" +
                     write + steps.after_write +
                     "bar.warp.sync -1;\n@%first st.release.gpu.global.u32 [%out+256], 1;\n"
                     "bra DONE;\nREAD:\n" +
                     ExpectText(128) + "@!%first bra LOADED;\n" + steps.before_acquire +
                     "POLL: ld.acquire.gpu.global.u32 %r1, [%out+256];\nsetp.ne.u32 %p2, %r1, 1;\n"
                     "@%p2 bra POLL;\n" +
                     steps.after_acquire + kLoad + "LOADED:\n" + WaitText() +
                     "bar.warp.sync -1;\nshl.b32 %r2, %tid, 2;\nadd.u32 %r2, %r2, %data;\n"
                     "ld.shared.u32 %r3, [%r2];\nmul.wide.u32 %rd2, %tid, 4;\n"
                     "add.u64 %rd2, %rd2, %out;\nst.global.u32 [%rd2+384], %r3;\nDONE:\n",
                 launch);
}
constexpr const char* kWrite = "st.global.u32 [%rd1], %tid;\n";

TEST(Fence, ALoadOfGenericWritesNeedsAFenceOfGlobalMemory) {
  for (const RunOptions& options : Orders()) {
    const TestLaunch launch{.options = options};
    for (const char* const fence : {kAnyFence, kGlobalFence}) {
      for (const Steps& steps : {Steps{.after_acquire = fence}, Steps{.after_write = fence}}) {
        const TestRun run = RunMessage(kWrite, steps, launch);
        ASSERT_EQ(Report(run), "") << fence;
        for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[96 + i], i);
      }
    }
    for (const Steps& steps :
         {Steps{}, Steps{.after_acquire = kSharedFence}, Steps{.after_write = kSharedFence},
          Steps{.before_acquire = kAnyFence},
          Steps{.after_acquire = "fence.acq_rel.gpu;\nfence.proxy.alias;\n"}}) {
      EXPECT_TRUE(Contains(RunMessage(kWrite, steps, launch), kNoFence))
          << steps.after_write << steps.before_acquire << steps.after_acquire;
    }
  }
}

TEST(Fence, AFenceBeforeTheWriteDoesNotCoverIt) {
  EXPECT_TRUE(Contains(RunMessage(std::string(kAnyFence) + kWrite, {}), kNoFence));
}

TEST(Fence, OneLanesFenceOfTheWriterCoversWhatItKnows) {
  const std::string fence = "@%first fence.proxy.async.global;\n";
  EXPECT_EQ(Report(RunMessage(kWrite, {.after_write = "bar.warp.sync -1;\n" + fence})), "");
  EXPECT_TRUE(Contains(RunMessage(kWrite, {.after_write = fence}), kNoFence));
}

TEST(Fence, ALoadOfAnotherCtasStoreNeedsAFenceUnlessThePolicyHasOne) {
  const std::string store = "@%first " + std::string(kStore);
  for (const RunOptions& options : Orders()) {
    for (const bool completion : {false, true}) {
      const TestLaunch launch{.options = options,
                              .policy = {.store_completion_fences = completion}};
      EXPECT_EQ(Report(RunMessage(store, {.after_acquire = kGlobalFence}, launch)), "");
      for (const Steps& steps : {Steps{}, Steps{.after_acquire = kSharedFence}}) {
        EXPECT_EQ(Contains(RunMessage(store, steps, launch), kNoFence), !completion);
      }
      EXPECT_TRUE(Contains(RunMessage(kWrite, {}, launch), kNoFence))
          << "generic writes have no completion";
    }
  }
}

TEST(Fence, TheEndOfTheReadsOfAStoreIsNoCompletion) {
  const std::string store =
      "@%first cp.async.bulk.global.shared::cta.bulk_group [%out], [%data], 128;\n"
      "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n";
  for (const bool completion : {false, true}) {
    const TestLaunch launch{.policy = {.store_completion_fences = completion}};
    EXPECT_TRUE(Contains(RunMessage(store, {.after_acquire = kAnyFence}, launch),
                         "asynchronous read after asynchronous write, without an order"));
  }
}

TEST(Fence, AStoreOverGenericReadsNeedsAFence) {
  // CTA 0 reads what CTA 1 overwrites by a bulk store, after the message.
  const std::string read = "ld.global.u32 %r1, [%rd1];\n";
  const auto run = [&](const std::string& fence, bool refill) {
    const std::string store =
        fence + "cp.async.bulk.global.shared::cta.bulk_group [%out], [%data], 128;\n" +
        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n" + kAnyFence;
    return RunMessage(read, {.after_acquire = store}, {.policy = {.fence_before_refill = refill}});
  };
  EXPECT_EQ(Report(run(kGlobalFence, true)), "");
  EXPECT_TRUE(Contains(run("", true), kNoFence));
  EXPECT_TRUE(Contains(run(kSharedFence, true), kNoFence));
  EXPECT_EQ(Report(run("", false)), "");
}

// ---- Shared memory, of one CTA with two warps: `first` runs in warp 0, then a barrier, and then
// `then` in the first lane of warp 1.

TestRun RunTwoWarps(const std::string& first, const std::string& then, TestLaunch launch = {}) {
  launch.in.resize(32, 5);
  launch.out_words = 64;
  launch.threads = 64;
  return RunBody(SharedText() +
                     "shl.b32 %r1, %tid, 2;\nand.b32 %r1, %r1, 127;\nadd.u32 %r1, %r1, %data;\n"
                     "setp.ge.u32 %p1, %tid, 32;\n@%p1 bra SECOND;\n" +
                     first + "SECOND:\nbar.sync 1;\nsetp.ne.u32 %p2, %tid, 32;\n@%p2 bra DONE;\n" +
                     then + "DONE:\n",
                 launch);
}
constexpr const char* kWriteShared = "st.shared.u32 [%r1], %tid;\n";

TEST(Fence, AStoreOfGenericWritesNeedsAFenceOfSharedMemory) {
  for (const RunOptions& options : Orders()) {
    const TestLaunch launch{.options = options};
    for (const char* const fence :
         {kAnyFence, kSharedFence, "fence.proxy.async.shared::cluster;\n"}) {
      const TestRun run = RunTwoWarps(std::string(kWriteShared) + fence, kStore, launch);
      ASSERT_EQ(Report(run), "") << fence;
      for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[i], i);
    }
    for (const std::string& first :
         {std::string(kWriteShared), kWriteShared + std::string(kGlobalFence),
          kSharedFence + std::string(kWriteShared)}) {
      EXPECT_TRUE(Contains(RunTwoWarps(first, kStore, launch), kNoFence)) << first;
    }
  }
}

TEST(Fence, AThreadsOwnWritesNeedAFenceToo) {
  const std::string write = "st.shared.v4.u32 [%data], {%r1, %r1, %r1, %r1};\n",
                    store =
                        "cp.async.bulk.global.shared::cta.bulk_group [%out], [%data], 16;\n"
                        "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n";
  EXPECT_EQ(Report(RunTwoWarps("", write + kSharedFence + store)), "");
  EXPECT_TRUE(Contains(RunTwoWarps("", write + store), kNoFence));
}

TEST(Fence, ThePolicyDecidesIfAFenceCoversOthersWrites) {
  for (const RunOptions& options : Orders()) {
    const std::string then = std::string(kSharedFence) + kStore;
    TestLaunch launch{.options = options};
    EXPECT_TRUE(Contains(RunTwoWarps(kWriteShared, then, launch), kNoFence));
    launch.policy.fence_own_only = false;
    EXPECT_EQ(Report(RunTwoWarps(kWriteShared, then, launch)), "");
    EXPECT_TRUE(Contains(RunTwoWarps(kWriteShared, kStore, launch), kNoFence));
  }
}

std::string Refill() {
  return "mbarrier.arrive.expect_tx.shared.b64 _, [%bar], 128;\n"
         "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%data], [%in], 128, "
         "[%bar];\n" +
         WaitText() + "ld.shared.u32 %r2, [%data+124];\nst.global.u32 [%out], %r2;\n";
}

TEST(Fence, ThePolicyDecidesIfReadsNeedAFenceBeforeARefill) {
  const std::string write = kWriteShared + std::string(kSharedFence),
                    read = write + "ld.shared.u32 %r2, [%r1];\n";
  for (const RunOptions& options : Orders()) {
    TestLaunch launch{.options = options};
    EXPECT_TRUE(Contains(RunTwoWarps(read, Refill(), launch),
                         "asynchronous write after read, without a proxy fence"));
    const TestRun fenced = RunTwoWarps(read + kSharedFence, Refill(), launch);
    ASSERT_EQ(Report(fenced), "");
    EXPECT_EQ(fenced.out[0], 5u);
    launch.policy.fence_before_refill = false;
    EXPECT_EQ(Report(RunTwoWarps(read, Refill(), launch)), "");
    // Writes need it in any case.
    EXPECT_TRUE(Contains(RunTwoWarps(kWriteShared, Refill(), launch),
                         "asynchronous write after write, without a proxy fence"));
  }
}

TEST(Fence, GenericAccessesAfterACompletionNeedNone) {
  const std::string twice = Refill() + "st.shared.u32 [%data], 9;\nld.shared.u32 %r2, [%data];\n";
  for (const RunOptions& options : Orders()) {
    EXPECT_EQ(Report(RunTwoWarps("", twice, {.options = options})), "");
  }
}

// Warp 0 copies 128 bytes by cp.async, and waits for them.
std::string CopyShared(const std::string& after) {
  return "mul.wide.u32 %rd1, %tid, 4;\nadd.u64 %rd1, %rd1, %in;\n"
         "cp.async.ca.shared.global [%r1], [%rd1], 4;\ncp.async.wait_all;\n" +
         after;
}

TEST(Fence, CopiesOfCpAsyncNeedAFence) {
  for (const RunOptions& options : Orders()) {
    TestLaunch launch{.options = options};
    EXPECT_TRUE(Contains(RunTwoWarps(CopyShared(""), kStore, launch), kNoFence));
    launch.policy.fence_own_only = false;
    EXPECT_EQ(Report(RunTwoWarps(CopyShared(kSharedFence), kStore, launch)), "");
    EXPECT_TRUE(Contains(RunTwoWarps(CopyShared(""), kStore, launch), kNoFence));
  }
}

// The copies are agents of their own, so fence_own_only does not see that they are the thread's.
TEST(Fence, AFenceCoversTheCopiesOfItsThread) {
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunTwoWarps(CopyShared(kSharedFence), kStore, {.options = options});
    EXPECT_EQ(Report(run), "");
    EXPECT_EQ(run.out[31], 5u);
  }
}

TEST(Fence, UnknownFormsAreNamed) {
  for (const std::string text :
       {"fence.proxy.async.local;", "fence.proxy.generic;", "fence.sc;", "fence.gpu;",
        "fence.mbarrier_init.release.gpu;", "fence.proxy.tensormap::generic.gpu;",
        "fence.acq_rel.async.gpu;", "membar.cluster;",
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;"}) {
    EXPECT_TRUE(Contains(RunBody(text), "unknown instruction")) << text;
  }
}

}  // namespace
}  // namespace ptx
