// Loads, stores and atomics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/ptx/bulk/bulk_test_text.h"
#include "tests/model/ptx/engine/test_gpus.h"

namespace ptx {
namespace {

using testing::HasSubstr;
using Words = std::vector<uint32_t>;

// Lane 0 runs the body.
std::string Alone(const std::string& body) {
  return "setp.ne.u32 %p0, %tid, 0;\n@%p0 bra END;\n" + body + "END:\n";
}
// The first words of %out; the rest must be untouched.
Words RunFor(size_t count, const std::string& body, const Words& in) {
  const TestRun run = RunBody(Alone(body), {.in = in});
  EXPECT_EQ(Report(run), "") << body;
  EXPECT_EQ(run.out[count], 0xddddddddu) << body;
  return Words(run.out.begin(), run.out.begin() + count);
}

// ---- Loads and stores

TEST(Access, VectorsHaveTheirElementsInOrder) {
  const Words in = {1, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(
      RunFor(2, "ld.global.v2.u32 {%r1, %r2}, [%in+8];\nst.global.v2.u32 [%out], {%r2, %r1};\n",
             in),
      (Words{4, 3}));
  EXPECT_EQ(RunFor(4,
                   "ld.global.nc.L1::no_allocate.v4.b32 {%r1, %r2, %r3, %r4}, [%in+16];\n"
                   "st.global.v4.b32 [%out], {%r4, %r3, %r2, %r1};\n",
                   in),
            (Words{8, 7, 6, 5}));
  EXPECT_EQ(
      RunFor(4, "ld.global.v2.u64 {%rd1, %rd2}, [%in];\nst.global.v2.b64 [%out], {%rd2, %rd1};\n",
             in),
      (Words{3, 4, 1, 2}));
  EXPECT_EQ(RunFor(2,
                   "ld.global.v4.u16 {%h1, %h2, %h3, %h4}, [%in];\n"
                   "st.global.v4.u16 [%out], {%h3, %h2, %h1, %h2};\n",
                   in),
            (Words{2, 1}));
  EXPECT_EQ(RunFor(2,
                   "ld.global.v4.f32 {_, %f1, _, %f2}, [%in];\nst.global.v2.f32 [%out], {%f1, "
                   "%f2};\n",
                   in),
            (Words{2, 4}));
  EXPECT_EQ(RunFor(1,
                   "ld.global.v2.u8 {%r1, %r2}, [%in];\nadd.u32 %r1, %r1, %r2;\n"
                   "st.global.u32 [%out], %r1;\n",
                   {0x0705}),
            (Words{12}));
}

TEST(Access, NarrowLoadsExtendTheirValue) {
  const Words in = {0x80f1ff7f, 0x12345678};
  const std::string store = "st.global.u64 [%out], %rd1;\n";
  const auto load = [&](const std::string& text) { return RunFor(2, text + store, in); };
  EXPECT_EQ(load("ld.global.s8 %rd1, [%in+1];\n"), (Words{0xffffffff, 0xffffffff}));
  EXPECT_EQ(load("ld.global.u8 %rd1, [%in+1];\n"), (Words{0xff, 0}));
  EXPECT_EQ(load("ld.global.s8 %rd1, [%in];\n"), (Words{0x7f, 0}));
  EXPECT_EQ(load("ld.global.s16 %rd1, [%in+2];\n"), (Words{0xffff80f1, 0xffffffff}));
  EXPECT_EQ(load("ld.global.u16 %rd1, [%in+2];\n"), (Words{0x80f1, 0}));
  EXPECT_EQ(load("ld.global.s32 %rd1, [%in];\n"), (Words{0x80f1ff7f, 0xffffffff}));
  EXPECT_EQ(load("ld.global.u32 %rd1, [%in];\n"), (Words{0x80f1ff7f, 0}));
  EXPECT_EQ(load("ld.global.b8 %rd1, [%in+3];\n"), (Words{0x80, 0}));
  EXPECT_EQ(load("ld.global.s8 %r1, [%in+1];\nmov.b64 %rd1, {%r1, %r1};\n"),
            (Words{0xffffffff, 0xffffffff}));
  EXPECT_EQ(load("ld.global.s8 %h1, [%in+1];\ncvt.u64.u16 %rd1, %h1;\n"), (Words{0xffff, 0}));
}

TEST(Access, NarrowStoresWriteTheLowBits) {
  EXPECT_EQ(RunFor(1,
                   "mov.u32 %r1, 0x12345678;\nst.global.u32 [%out], 0;\nst.global.u8 [%out+1], "
                   "%r1;\nst.global.u16 [%out+2], %r1;\n",
                   {0}),
            (Words{0x56787800}));
  EXPECT_EQ(RunFor(2, "mov.u64 %rd1, 0x123456789abcdef0;\nst.global.wb.u64 [%out], %rd1;\n", {0}),
            (Words{0x9abcdef0, 0x12345678}));
}

TEST(Access, VectorsLieAtAMultipleOfTheirSize) {
  const auto stop = [](const std::string& text) { return RunBody(text, {.in = Words(8)}).stop; };
  EXPECT_THAT(stop("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%in+8];"),
              HasSubstr("is not a multiple of 16"));
  EXPECT_THAT(stop("ld.global.v2.u32 {%r1, %r2}, [%in+4];"), HasSubstr("is not a multiple of 8"));
  EXPECT_THAT(stop("st.global.v2.u16 [%out+2], {%h1, %h2};"), HasSubstr("is not a multiple of 4"));
  EXPECT_THAT(stop("atom.global.add.u64 %rd1, [%out+4], 1;"), HasSubstr("is not a multiple of 8"));
}

TEST(Access, StateSpacesAndGenericAddressesAreOneMemory) {
  EXPECT_EQ(RunFor(2, R"(
    .shared .align 8 .b8 word[8];
    mov.u32 %r1, word;
    cvt.u64.u32 %rd1, %r1;
    cvta.shared.u64 %rd1, %rd1;
    st.u32 [%rd1], 5;
    ld.shared.u32 %r2, [word];
    atom.add.u32 %r3, [%rd1], 2;
    ld.volatile.shared.u32 %r3, [word];
    st.v2.u32 [%out], {%r2, %r3};)",
                   {}),
            (Words{5, 7}));
}

TEST(Access, LocalMemoryBelongsToAThread) {
  const TestRun run = RunBody(R"(
    .local .align 4 .b8 depot[8];
    st.local.u32 [depot+4], %tid;
    bar.warp.sync -1;
    ld.local.u32 %r0, [depot+4];
    mul.wide.u32 %rd0, %tid, 4;
    add.u64 %rd0, %rd0, %out;
    st.global.u32 [%rd0], %r0;)");
  ASSERT_EQ(Report(run), "");
  for (uint32_t i = 0; i < 32; ++i) EXPECT_EQ(run.out[i], i);
}

// ---- Atomics

// Runs one operation on the words at %in, with `value` in %r1, %rd1, %h1, %f1 or %d1, and checks
// the words after it. atom must return the words before it.
struct Operation {
  std::string name;  // "add.u32"
  uint64_t old, value, result;
  uint64_t second = 0;  // of cas
};

void Expect(const Operation& operation) {
  const std::string type = operation.name.substr(operation.name.rfind('.') + 1);
  const bool wide = type.substr(1) == "64", half = type == "b16" || type == "f16" || type == "bf16";
  const bool cas = operation.name.starts_with("cas");
  const std::string kind = wide ? "%rd" : half ? "%h" : "%r";
  const auto move = [&](int index, uint64_t bits) {
    return std::string("mov.") +
           (wide   ? "b64 "
            : half ? "b16 "
                   : "b32 ") +
           kind + std::to_string(index) + ", " + std::to_string(bits) + ";\n";
  };
  const Words in = {static_cast<uint32_t>(operation.old),
                    static_cast<uint32_t>(operation.old >> 32)};
  const std::string values = move(1, operation.value) + move(2, operation.second);
  const std::string operands = kind + "1" + (cas ? ", " + kind + "2" : "") + ";\n";
  const std::string store = std::string("st.global.b") +
                            (wide   ? "64"
                             : half ? "16"
                                    : "32") +
                            " [%out+8], " + kind + "3;\n";
  const auto check = [&](const std::string& text, bool returns) {
    const TestRun run =
        RunBody(Alone("st.global.u64 [%out], 0;\nst.global.u64 [%out+8], 0;\n" + values + text +
                      "ld.relaxed.gpu.global.u64 %rd4, [%in];\nst.global.u64 [%out], %rd4;\n"),
                {.in = in});
    ASSERT_EQ(Report(run), "") << text;
    EXPECT_EQ(run.out[0] | uint64_t{run.out[1]} << 32, operation.result) << text;
    EXPECT_EQ(run.out[2] | uint64_t{run.out[3]} << 32, returns ? operation.old : 0) << text;
  };
  check("atom.global." + operation.name + " " + kind + "3, [%in], " + operands + store, true);
  check("atom.relaxed.gpu.global." + operation.name + " _, [%in], " + operands, false);
  const bool has_red = !cas && !operation.name.starts_with("exch");
  if (has_red) check("red.relaxed.sys.global." + operation.name + " [%in], " + operands, false);
}

TEST(Access, IntegersAreCombined) {
  const uint64_t big = uint64_t{1} << 63;
  const Operation operations[] = {
      {"add.u32", 0xffffffff, 2, 1},
      {"add.s32", 5, 0xfffffffe, 3},
      {"add.u64", 0xffffffff, 1, uint64_t{1} << 32},
      {"min.s32", 5, 0xffffffff, 0xffffffff},
      {"min.u32", 5, 0xffffffff, 5},
      {"max.s32", 5, 0xffffffff, 5},
      {"max.u32", 5, 0xffffffff, 0xffffffff},
      {"min.s64", 5, big, big},
      {"min.u64", 5, big, 5},
      {"max.s64", 5, big, 5},
      {"max.u64", 5, big, big},
      {"and.b32", 12, 10, 8},
      {"or.b32", 12, 10, 14},
      {"xor.b32", 12, 10, 6},
      {"and.b64", big | 12, big | 10, big | 8},
      {"or.b64", 12, big, big | 12},
      {"xor.b64", big | 12, big | 10, 6},
      {"inc.u32", 4, 5, 5},
      {"inc.u32", 5, 5, 0},
      {"inc.u32", 9, 5, 0},
      {"dec.u32", 4, 5, 3},
      {"dec.u32", 0, 5, 5},
      {"dec.u32", 9, 5, 5},
      {"exch.b32", 3, 9, 9},
      {"exch.b64", 3, big, big},
      {.name = "cas.b32", .old = 3, .value = 3, .result = 9, .second = 9},
      {.name = "cas.b32", .old = 4, .value = 3, .result = 4, .second = 9},
      {.name = "cas.b64", .old = big, .value = big, .result = 9, .second = 9},
      {.name = "cas.b64", .old = big | 1, .value = big, .result = big | 1, .second = 9},
      {.name = "cas.b16", .old = 3, .value = 3, .result = 9, .second = 9},
      {.name = "cas.b16", .old = 4, .value = 3, .result = 4, .second = 9},
  };
  for (const Operation& operation : operations) Expect(operation);
}

TEST(Access, FloatsAreAdded) {
  const Operation operations[] = {
      {"add.f32", 0x3f800000, 0x40000000, 0x40400000},                          // 1 + 2
      {"add.f64", 0x3ff0000000000000, 0x4000000000000000, 0x4008000000000000},  // 1 + 2
      {"add.noftz.f16", 0x3c00, 0x4000, 0x4200},                                // 1 + 2
      {"add.noftz.f16", 1, 1, 2},                                               // subnormal
      {"add.noftz.bf16", 0x3f80, 0x4000, 0x4040},                               // 1 + 2
      {"add.noftz.f16x2", 0x3c003c00, 0x40003c00, 0x42004000},                  // 3, 2
      {"add.noftz.bf16x2", 0x3f803f80, 0x40003f80, 0x40404000},                 // 3, 2
      {"add.noftz.f16", 0x6800, 0x3c00, 0x6800},  // 2048 + 1 is a tie, and 2048 is even
  };
  for (const Operation& operation : operations) Expect(operation);
}

TEST(Access, VectorsAreAddedElementByElement) {
  EXPECT_EQ(RunFor(4, R"(
    mov.f32 %f1, 0f3f800000;
    mov.f32 %f2, 0f40000000;
    atom.global.v2.f32.add {%f3, %f4}, [%in], {%f1, %f2};
    st.global.v2.f32 [%out], {%f3, %f4};
    red.global.v2.f32.add [%in], {%f1, %f2};
    ld.global.v2.f32 {%f3, %f4}, [%in];
    st.global.v2.f32 [%out+8], {%f3, %f4};)",
                   {0x3f800000, 0}),
            (Words{0x3f800000, 0, 0x40400000, 0x40800000}));
}

TEST(Access, AtomicsOfManyThreadsAddUp) {
  for (const RunOptions& options : Orders()) {
    const TestRun run = RunBody(R"(
      red.global.add.u32 [%in], 1;
      atom.global.max.u32 %r1, [%in+4], %tid;
      atom.acq_rel.gpu.global.add.u64 %rd1, [%in+8], 3;
      .shared .align 4 .b8 sum[4];
      setp.eq.u32 %p0, %tid, 0;
      @%p0 st.shared.u32 [sum], 0;
      bar.sync 0;
      red.shared.add.u32 [sum], %tid;
      bar.sync 0;
      @!%p0 bra END;
      ld.shared.u32 %r2, [sum];
      mul.wide.u32 %rd2, %cta, 4;
      add.u64 %rd2, %rd2, %out;
      st.global.u32 [%rd2], %r2;
      atom.acq_rel.gpu.global.add.u32 %r3, [%in+16], 1;
      setp.ne.u32 %p1, %r3, 2;
      @%p1 bra END;
      ld.relaxed.gpu.global.u32 %r4, [%in];
      ld.relaxed.gpu.global.u32 %r5, [%in+4];
      ld.relaxed.gpu.global.u32 %r6, [%in+8];
      st.global.v4.u32 [%out+16], {%r4, %r5, %r6, %r3};
      END:)",
                                {.in = Words(8), .threads = 64, .ctas = 3, .options = options});
    ASSERT_EQ(Report(run), "");
    for (int cta = 0; cta < 3; ++cta) EXPECT_EQ(run.out[cta], 63u * 32);
    EXPECT_EQ(run.out[4], 192u);
    EXPECT_EQ(run.out[5], 63u);
    EXPECT_EQ(run.out[6], 576u);
  }
}

TEST(Access, ALockOrdersItsOwners) {
  // Lane 0 of each CTA takes the lock, and increments a word with ordinary accesses.
  const auto body = [](const std::string& order) {
    return Alone("LOCK: atom." + order + R"(.gpu.global.cas.b32 %r1, [%in], 0, 1;
      setp.ne.u32 %p1, %r1, 0;
      @%p1 bra LOCK;
      ld.global.u32 %r2, [%in+64];
      add.u32 %r2, %r2, 1;
      st.global.u32 [%in+64], %r2;
      st.global.u32 [%out], %r2;
      st.release.gpu.global.u32 [%in], 0;
    )");
  };
  for (const RunOptions& options : Orders()) {
    const TestLaunch launch{.in = Words(32), .ctas = 4, .options = options};
    const TestRun run = RunBody(body("acquire"), launch);
    ASSERT_EQ(Report(run), "");
    EXPECT_EQ(run.out[0], 4u);
    EXPECT_TRUE(Contains(RunBody(body("relaxed"), launch), "without an order"));
  }
}

TEST(Access, UnknownFormsAreNamed) {
  for (const std::string text :
       {"atom.global.add %r1, [%in], 1;", "atom.global.sub.u32 %r1, [%in], 1;",
        "atom.global.and.f32 %f1, [%in], %f2;", "atom.global.cas.b32 %r1, [%in], 1;",
        "atom.global.exch.b128 %rd1, [%in], %rd2;", "atom.global.add.u32 %r1, [%in];",
        "red.global.add.u32 %r1, [%in], 1;", "ld.relaxed.global.u32 %r1, [%in];",
        "ld.gpu.global.u32 %r1, [%in];", "st.release.global.u32 [%in], %r1;",
        "ld.global %r1, [%in];", "st.global.u32 [%in];", "ld.global.b128 %rd1, [%in];",
        "ld.global.v3.u32 {%r1, %r2, %r3}, [%in];"}) {
    EXPECT_THAT(RunBody(text, {.in = Words(8)}).stop, HasSubstr("unknown instruction")) << text;
  }
}

// ---- Strong accesses

TEST(Access, StrongAccessesOfAWideScopeDoNotRaceBetweenGpus) {
  const auto write = [](const std::string& order) {
    return Alone("st." + order + ".global.u32 [%out], 7;\n");
  };
  const auto read = [](const std::string& order) {
    return Alone("ld." + order + ".global.u32 %r1, [%out];\n");
  };
  const auto count = [](const std::string& order) {
    return Alone("red." + order + ".global.add.u32 [%out], 1;\n");
  };
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const RunOptions options{.seed = seed};
    for (const std::string order :
         {"relaxed.sys", "volatile", "relaxed.gpu", "relaxed.cta", "weak"}) {
      const bool races = order == "relaxed.gpu" || order == "relaxed.cta" || order == "weak";
      EXPECT_EQ(RunOnGpus({write(order), read(order)}, options).Contains("without an order"), races)
          << order;
      EXPECT_EQ(RunOnGpus({write(order), write(order)}, options).Contains("without an order"),
                races)
          << order;
    }
    EXPECT_TRUE(RunOnGpus({write("relaxed.sys"), read("relaxed.gpu")}, options)
                    .Contains("without an order"))
        << "the narrower scope counts";
    const GpusRun counted = RunOnGpus({count("relaxed.sys"), count("relaxed.sys")}, options);
    EXPECT_EQ(counted.Report(), "");
    EXPECT_EQ(counted.words[0][0], 2u);
    EXPECT_TRUE(RunOnGpus({count("relaxed.gpu"), count("relaxed.gpu")}, options)
                    .Contains("write after write, without an order"));
    EXPECT_TRUE(
        RunOnGpus({Alone("atom.global.add.u32 %r1, [%out], 1;\n"), count("relaxed.sys")}, options)
            .Contains("write after write, without an order"))
        << "an atomic is one of its GPU, unless it says more";
  }
}

TEST(Access, StrongAccessesOfTheGpuDoNotRaceWithinIt) {
  const auto races = [](const std::string& write, const std::string& read, uint32_t ctas) {
    const std::string body =
        Alone("setp.eq.u32 %p1, %cta, 0;\n@%p1 st." + write + ".global.u32 [%out], 7;\n@!%p1 ld." +
              read + ".global.u32 %r1, [%out];\n");
    return Contains(RunBody(body, {.ctas = ctas}), "without an order");
  };
  EXPECT_FALSE(races("relaxed.gpu", "relaxed.gpu", 2));
  EXPECT_FALSE(races("relaxed.sys", "relaxed.gpu", 2));
  EXPECT_FALSE(races("volatile", "acquire.gpu", 2));
  EXPECT_TRUE(races("relaxed.cta", "relaxed.gpu", 2));
  EXPECT_TRUE(races("relaxed.gpu", "weak", 2));
  EXPECT_TRUE(races("weak", "relaxed.gpu", 2));
}

TEST(Access, StrongAccessesOfTheClusterDoNotRaceWithinIt) {
  const std::string body = Alone("red.relaxed.cluster.global.add.u32 [%out], 1;\n");
  EXPECT_EQ(Report(RunBody(body, {.ctas = 2, .cluster = 2})), "");
  EXPECT_TRUE(Contains(RunBody(body, {.ctas = 2}), "write after write, without an order"));
}

TEST(Access, StrongAccessesOfTheCtaDoNotRaceWithinIt) {
  const auto races = [](const std::string& order) {
    const std::string body = "setp.eq.u32 %p1, %tid, 0;\nsetp.eq.u32 %p2, %tid, 32;\n@%p1 st." +
                             order + ".global.u32 [%out], 7;\n@%p2 ld." + order +
                             ".global.u32 %r1, [%out];\n";
    return Contains(RunBody(body, {.threads = 64}), "without an order");
  };
  EXPECT_FALSE(races("relaxed.cta"));
  EXPECT_FALSE(races("relaxed.cluster"));
  EXPECT_TRUE(races("weak"));
}

}  // namespace
}  // namespace ptx
