// multimem: one address for the same place on all GPUs.
#include <gtest/gtest.h>

#include "tests/model/ptx/engine/test_gpus.h"

namespace ptx {
namespace {

std::vector<RunOptions> Seeds() {
  std::vector<RunOptions> seeds;
  for (uint64_t seed = 1; seed <= 6; ++seed) seeds.push_back({.seed = seed});
  return seeds;
}

// The body for lane 0.
std::string Alone(const std::string& body) {
  return "setp.ne.u32 %p0, %tid, 0;\n@%p0 bra END;\n" + body + "END:\n";
}
// Polls a word, at this offset from %out, until it has at least this value.
std::string Poll(int offset, int value, const std::string& order = "acquire.sys") {
  return "POLL:\nld." + order + ".global.u32 %r0, [%out+" + std::to_string(offset) +
         "];\nsetp.lt.u32 %p1, %r0, " + std::to_string(value) + ";\n@%p1 bra POLL;\n";
}

TEST(Multimem, AStoreReachesAllGpus) {
  for (const std::string store :
       {"multimem.st.global.v4.f32 [%in+16], {%f1, %f2, %f1, %f2};\n",
        "mov.b64 %rd1, {%r1, %r2};\nmultimem.st.weak.global.u64 [%in+16], %rd1;\n"
        "multimem.st.relaxed.sys.global.b64 [%in+24], %rd1;\n",
        "multimem.st.release.sys.global.b32 [%in+16], %r1;\n"
        "multimem.st.b32 [%in+20], %r2;\nmultimem.st.b32 [%in+24], %r1;\n"
        "multimem.st.b32 [%in+28], %r2;\n"}) {
    const std::string body =
        Alone("mov.u32 %r1, 5;\nmov.u32 %r2, 6;\nmov.b32 %f1, %r1;\nmov.b32 %f2, %r2;\n" + store);
    const GpusRun run = RunOnGpus({body, "", ""});
    ASSERT_EQ(run.Report(), "");
    for (int gpu = 0; gpu < 3; ++gpu) {
      EXPECT_EQ(std::vector<uint32_t>(run.words[gpu].begin() + 3, run.words[gpu].begin() + 9),
                (std::vector<uint32_t>{0, 5, 6, 5, 6, 0}))
          << gpu;
    }
  }
}

TEST(Multimem, ReductionsOfAllGpusAddUpOnEachOne) {
  for (const RunOptions& options : Seeds()) {
    const auto body = [](int gpu) {
      return Alone("mov.u32 %r1, " + std::to_string(1 << gpu) + ";\nmov.u32 %r2, " +
                   std::to_string(gpu) + R"(;
        multimem.red.relaxed.sys.global.add.u32 [%in], %r1;
        multimem.red.global.or.b32 [%in+4], %r1;
        multimem.red.global.max.s32 [%in+8], %r2;
        cvt.u64.u32 %rd1, %r1;
        multimem.red.release.sys.global.xor.b64 [%in+16], %rd1;
        mov.f32 %f1, 0f3f800000;
        multimem.red.relaxed.sys.global.add.v2.f32 [%in+32], {%f1, %f1};
        mov.u32 %r3, 0x3c004000;
        multimem.red.relaxed.sys.global.add.f16x2 [%in+40], %r3;
      )");
    };
    const GpusRun run = RunOnGpus({body(0), body(1), body(2)}, options);
    ASSERT_EQ(run.Report(), "");
    for (const auto& words : run.words) {
      EXPECT_EQ(words[0], 7u);
      EXPECT_EQ(words[1], 7u);
      EXPECT_EQ(words[2], 2u);
      EXPECT_EQ(words[4], 7u);
      EXPECT_EQ(words[8], 0x40400000u);  // 3
      EXPECT_EQ(words[9], 0x40400000u);
      EXPECT_EQ(words[10], 0x42004600u);  // 3 and 6
    }
  }
}

// Each GPU writes its number + 1 and its square at its own words, and counts on all of them;
// GPU 0 waits for three and reduces into its words 8 to 10.
std::vector<std::string> ReduceBodies(const std::string& count, const std::string& poll) {
  const auto write = [&](int gpu) {
    const std::string own = std::to_string(256 * gpu);
    return "mov.u32 %r1, " + std::to_string(gpu + 1) + ";\nst.global.u32 [%out+" + own +
           "], %r1;\nmul.lo.u32 %r2, %r1, %r1;\nst.global.u32 [%out+" + own +
           "+4], %r2;\nmov.u32 %r3, 1;\n" + count;
  };
  return {Alone(write(0) + poll + R"(
            multimem.ld_reduce.relaxed.sys.global.add.u32 %r4, [%in];
            st.global.u32 [%out+32], %r4;
            multimem.ld_reduce.weak.global.max.s32 %r4, [%in+4];
            st.global.u32 [%out+36], %r4;
            multimem.ld_reduce.global.or.b32 %r4, [%in];
            st.global.u32 [%out+40], %r4;)"),
          Alone(write(1)), Alone(write(2))};
}
constexpr const char* kCount = "multimem.red.release.sys.global.add.u32 [%in+128], %r3;\n";

TEST(Multimem, ALoadReducesTheWordsOfAllGpus) {
  for (const RunOptions& options : Seeds()) {
    const GpusRun run = RunOnGpus(ReduceBodies(kCount, Poll(128, 3)), options);
    // The relaxed load is strong, and ordered after the weak writes.
    ASSERT_EQ(run.Report(), "");
    EXPECT_EQ(run.words[0][8], 6u);
    EXPECT_EQ(run.words[0][9], 9u);
    EXPECT_EQ(run.words[0][10], 3u);
    for (const auto& words : run.words) EXPECT_EQ(words[32], 3u);
  }
}

TEST(Multimem, ACountNeedsAReleaseOfTheSystem) {
  for (const RunOptions& options : Seeds()) {
    for (const std::string count : {"multimem.red.relaxed.sys.global.add.u32 [%in+128], %r3;\n",
                                    "multimem.red.global.add.u32 [%in+128], %r3;\n",
                                    "multimem.red.release.gpu.global.add.u32 [%in+128], %r3;\n"}) {
      EXPECT_TRUE(RunOnGpus(ReduceBodies(count, Poll(128, 3)), options)
                      .Contains("read after write, without an order"))
          << count;
    }
    EXPECT_TRUE(RunOnGpus(ReduceBodies(kCount, Poll(128, 3, "relaxed.sys")), options)
                    .Contains("read after write, without an order"));
  }
}

TEST(Multimem, AWaitForTooFewIsFound) {
  int found = 0;
  for (const RunOptions& options : Seeds()) {
    found += RunOnGpus(ReduceBodies(kCount, Poll(128, 2)), options).Contains("without an order");
  }
  EXPECT_GT(found, 0);
}

TEST(Multimem, AReleaseCarriesAStoreToAllGpus) {
  // GPU 0 broadcasts, and then a flag; each other GPU reads its own words.
  const auto bodies = [](const std::string& flag) {
    const auto read = [](int gpu) {
      return Alone(Poll(256 * gpu + 128, 1) + "ld.global.u32 %r1, [%out+" +
                   std::to_string(256 * gpu) + "];\nst.global.u32 [%out+" +
                   std::to_string(256 * gpu + 64) + "], %r1;\n");
    };
    return std::vector<std::string>{
        Alone("mov.u32 %r1, 7;\nmov.u32 %r2, 1;\nmultimem.st.global.u32 [%in], %r1;\n" + flag),
        read(1), read(2)};
  };
  for (const RunOptions& options : Seeds()) {
    for (const std::string flag :
         {"multimem.st.release.sys.global.u32 [%in+128], %r2;\n",
          "multimem.red.release.sys.global.add.u32 [%in+128], %r2;\n",
          "fence.acq_rel.sys;\nmultimem.red.relaxed.sys.global.add.u32 [%in+128], %r2;\n"}) {
      const GpusRun run = RunOnGpus(bodies(flag), options);
      ASSERT_EQ(run.Report(), "") << flag;
      EXPECT_EQ(run.words[1][16], 7u);
      EXPECT_EQ(run.words[2][16], 7u);
    }
    EXPECT_TRUE(RunOnGpus(bodies("multimem.st.relaxed.sys.global.u32 [%in+128], %r2;\n"), options)
                    .Contains("read after write, without an order"));
  }
}

TEST(Multimem, AnAcquiringLoadOrdersWhatFollows) {
  const auto bodies = [](const std::string& order) {
    return std::vector<std::string>{
        Alone("POLL:\nmultimem.ld_reduce." + order +
              ".sys.global.add.u32 %r0, [%in+128];\nsetp.ne.u32 %p1, %r0, 1;\n@%p1 bra POLL;\n"
              "ld.global.u32 %r1, [%out+256];\nst.global.u32 [%out], %r1;\n"),
        Alone("st.global.u32 [%out+256], 7;\nst.release.sys.global.u32 [%out+384], 1;\n")};
  };
  for (const RunOptions& options : Seeds()) {
    const GpusRun run = RunOnGpus(bodies("acquire"), options);
    ASSERT_EQ(run.Report(), "");
    EXPECT_EQ(run.words[0][0], 7u);
    EXPECT_TRUE(RunOnGpus(bodies("relaxed"), options).Contains("without an order"));
  }
}

TEST(Multimem, AWeakBroadcastRacesOnEveryGpu) {
  EXPECT_TRUE(RunOnGpus({Alone("multimem.st.global.u32 [%in], %r1;\n"),
                         Alone("st.global.u32 [%out+256], 7;\n")})
                  .Contains("write after write, without an order"));
}

TEST(Multimem, WrongAddressesAreNamed) {
  EXPECT_TRUE(RunOnGpus({"multimem.st.global.u32 [%out], %r1;"})
                  .Contains("there is no multicast object at"));
  EXPECT_TRUE(RunOnGpus({"multimem.st.global.v4.f32 [%in+248], {%f1, %f1, %f1, %f1};"})
                  .Contains("there is no multicast object at"));
  EXPECT_TRUE(RunOnGpus({"multimem.st.global.v2.f32 [%in+4], {%f1, %f1};"})
                  .Contains("the address is not a multiple of 8"));
  EXPECT_TRUE(RunOnGpus({"ld.global.u32 %r1, [%in];"}).Contains("lies outside of the memory"))
      << "an ordinary load has no place on all GPUs";
}

TEST(Multimem, UnknownFormsAreNamed) {
  for (const std::string text :
       {"multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%r1, %r2, %r3, %r4}, [%in];",
        "multimem.st.relaxed.global.u32 [%in], %r1;", "multimem.red.global.inc.u32 [%in], %r1;",
        "multimem.red.global.u32 [%in], %r1;", "multimem.st.global.add.u32 [%in], %r1;",
        "multimem.ld.global.u32 %r1, [%in];",
        "multimem.cp.async.bulk.global.shared::cta.bulk_group [%in], [%r1], 16;"}) {
    EXPECT_TRUE(RunOnGpus({text}).Contains("unknown instruction")) << text;
  }
}

}  // namespace
}  // namespace ptx
