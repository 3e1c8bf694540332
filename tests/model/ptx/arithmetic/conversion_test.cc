#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/model/ptx/arithmetic/compute_rows.h"
#include "tests/model/ptx/arithmetic/floats.h"

namespace ptx {
namespace {

uint64_t F(float value) { return std::bit_cast<uint32_t>(value); }
uint64_t D(double value) { return std::bit_cast<uint64_t>(value); }
uint64_t H(float value) { return F16OfFloat(value); }
uint64_t B(float value) { return BF16OfFloat(value); }

constexpr float kInfinity = INFINITY;
constexpr uint64_t kMin32 = 0x80000000, kMax32 = 0x7fffffff, kOnes32 = 0xffffffff,
                   kNaN = 0x7fffffff;
constexpr uint64_t kMin64 = uint64_t{1} << 63, kOnes64 = ~uint64_t{0};

TEST(Mov, ValuesKeepTheirBits) {
  CheckRows("mov.b32 %r5, %r1;", {{{0x12345678}, 0x12345678}});
  CheckRows("mov.b32 %f5, %r1;", {{{0x7f800001}, 0x7f800001}}, "%f5");
  CheckRows("mov.f32 %f5, %f1;", {{{0x7f800001}, 0x7f800001}}, "%f5");
  CheckRows("mov.u64 %rd5, %rd1;", {{{kOnes64 - 1}, kOnes64 - 1}}, "%rd5");
  CheckRows("mov.b64 %d5, %rd1;", {{{D(2)}, D(2)}}, "%d5");
  CheckRows("mov.u16 %h5, -3;", {{{}, 0xfffd}}, "%h5");
  CheckRows("mov.s32 %r5, -3;", {{{}, 0xfffffffd}});
  CheckRows("mov.b64 %rd5, -3;", {{{}, kOnes64 - 2}}, "%rd5");
  CheckRows("mov.b32 %r5, 0f3F800000;", {{{}, F(1)}});
  CheckRows("mov.f64 %d5, 0.1;", {{{}, D(0.1)}}, "%d5");
  CheckRows("mov.u32 %r5, WARP_SZ;", {{{}, 32}});
  ExpectUnknown("mov.b32 %r5, 1.0;");
  ExpectUnknown("mov.u64 %rd5, %r1;");
  ExpectUnknown("mov.f32 %f5, 1;");
}

TEST(Mov, PredicatesMove) {
  CheckRows("setp.ne.u32 %p1, %r1, 0; mov.pred %p5, %p1;", {{{1}, 1}, {{0}, 0}}, "%p5");
  CheckRows("setp.ne.u32 %p1, %r1, 0; mov.pred %p5, !%p1;", {{{1}, 0}, {{0}, 1}}, "%p5");
  CheckRows("mov.pred %p5, 1;", {{{}, 1}}, "%p5");
}

TEST(Mov, VectorsArePackedAndUnpacked) {
  CheckRows("mov.b64 %rd5, {%r1, %r2};", {{{kOnes32, 5}, 0x5ffffffff}}, "%rd5");
  CheckRows("mov.b64 %rd5, {%f1, 0fC0000000};", {{{F(1)}, 0xc00000003f800000}}, "%rd5");
  CheckRows("mov.b64 %rd5, {%h1, %h2, %h3, 7};", {{{1, 2, 0xffff}, 0x7ffff00020001}}, "%rd5");
  CheckRows("mov.b32 %r5, {%h1, %h2};", {{{0xffff, 2}, 0x2ffff}});
  CheckRows("mov.b32 %r5, {%r1};", {{{7}, 7}});
  CheckRows("mov.b64 {%r5, %r4}, %rd1;", {{{0x0123456789abcdef}, 0x89abcdef}});
  CheckRows("mov.b64 {_, %r5}, %rd1;", {{{0x0123456789abcdef}, 0x01234567}});
  CheckRows("mov.b64 {%h4, %h4, %h5, _}, %rd1;", {{{0x0123456789abcdef}, 0x4567}}, "%h5");
  CheckRows("mov.b32 {%h4, %h5}, %f1;", {{{0x12345678}, 0x1234}}, "%h5");
  CheckRows("mov.b32 {%h5, %h4}, 0x12345678;", {{{}, 0x5678}}, "%h5");
  ExpectUnknown("mov.b64 {%r1, %r2}, {%r3, %r4};");
  ExpectUnknown("mov.b64 %rd5, {%h1, %h2};");
}

TEST(Mov, SpecialRegistersAndSymbolsHaveValues) {
  const TestRun run = RunBody(R"(
    .shared .align 16 .b8 first[32]; .shared .align 16 .b8 second[16];
    mov.u32 %r1, %laneid; mul.wide.u32 %rd1, %r1, 4; add.u64 %rd1, %out, %rd1;
    mov.u32 %r2, first; mov.u32 %r3, second+4; sub.u32 %r4, %r3, %r2;
    mad.lo.u32 %r4, %r1, 1000, %r4; st.global.u32 [%rd1], %r4;)");
  EXPECT_EQ(run.stop, "");
  for (uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(run.out[lane], lane * 1000 + 36);
}

TEST(Cvt, IntegersAreCutAndExtended) {
  CheckRows("cvt.u64.u32 %rd5, %r1;", {{{kOnes32}, kOnes32}}, "%rd5");
  CheckRows("cvt.s64.s32 %rd5, %r1;", {{{kOnes32}, kOnes64}}, "%rd5");
  CheckRows("cvt.u64.s32 %rd5, %r1;", {{{kOnes32}, kOnes64}}, "%rd5");
  CheckRows("cvt.u32.u64 %r5, %rd1;", {{{0x1234567890}, 0x34567890}});
  CheckRows("cvt.u16.u32 %h5, %r1;", {{{0x12345}, 0x2345}}, "%h5");
  CheckRows("cvt.s32.s16 %r5, %h1;", {{{0x8000}, 0xffff8000}});
  CheckRows("cvt.u32.s16 %r5, %h1;", {{{0x8000}, 0xffff8000}});
  CheckRows("cvt.u32.u16 %r5, %h1;", {{{0x8000}, 0x8000}});
  CheckRows("cvt.u64.u32 %rd5, 7;", {{{}, 7}}, "%rd5");
}

TEST(Cvt, WiderRegistersAreFilledAndCut) {
  CheckRows("cvt.u32.u8 %r5, %r1;", {{{0x1ff}, 0xff}});
  CheckRows("cvt.s32.s8 %r5, %r1;", {{{0x180}, 0xffffff80}});
  CheckRows("cvt.s8.s32 %h5, %r1;", {{{0x180}, 0xff80}}, "%h5");
  CheckRows("cvt.u8.s32 %h5, %r1;", {{{0x180}, 0x80}}, "%h5");
  CheckRows("cvt.s8.u32 %rd5, %r1;", {{{0x180}, kOnes64 - 127}}, "%rd5");
  CheckRows("cvt.s16.s32 %r5, %r1;", {{{0x18000}, 0xffff8000}});
  CheckRows("cvt.u16.s32 %r5, %r1;", {{{0x18000}, 0x8000}});
  CheckRows("cvt.rn.f16.f32 %r5, %f1;", {{{F(-1)}, H(-1)}});
  CheckRows("cvt.rzi.s32.f32 %rd5, %f1;", {{{F(-1)}, kOnes64}}, "%rd5");
  ExpectUnknown("cvt.u32.u64 %h5, %rd1;");
}

TEST(Cvt, SatClampsIntegers) {
  CheckRows("cvt.sat.u8.s32 %r5, %r1;", {{{300}, 255}, {{kOnes32}, 0}, {{7}, 7}});
  CheckRows("cvt.sat.s8.s32 %r5, %r1;", {{{300}, 127}, {{kMin32}, 0xffffff80}});
  CheckRows("cvt.sat.s32.u64 %r5, %rd1;", {{{kOnes64}, kMax32}});
  CheckRows("cvt.sat.u16.s64 %h5, %rd1;", {{{kMin64}, 0}, {{1 << 20}, 0xffff}}, "%h5");
}

TEST(Cvt, SpecialRegistersAreSources) {
  const TestRun run = RunBody(R"(
    cvt.u64.u32 %rd1, %tid.x; shl.b64 %rd2, %rd1, 2; add.u64 %rd2, %out, %rd2;
    st.global.b32 [%rd2], %rd1;)");
  EXPECT_EQ(run.stop, "");
  for (uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(run.out[lane], lane);
}

TEST(Cvt, IntegersBecomeTheNearestFloat) {
  CheckRows("cvt.rn.f32.s32 %f5, %r1;",
            {{{kOnes32}, F(-1)}, {{0x1000001}, F(0x1p24f)}, {{kMin32}, F(-0x1p31f)}}, "%f5");
  CheckRows("cvt.rn.f32.u32 %f5, %r1;", {{{kOnes32}, F(0x1p32f)}}, "%f5");
  CheckRows("cvt.rz.f32.u32 %f5, %r1;", {{{kOnes32}, F(0x1.fffffep31f)}}, "%f5");
  CheckRows("cvt.rp.f32.u64 %f5, %rd1;", {{{(1ull << 62) + 1}, F(0x1.000002p62f)}}, "%f5");
  CheckRows("cvt.rm.f32.s64 %f5, %rd1;", {{{kMin64 + 1}, F(-0x1p63f)}, {{kOnes64}, F(-1)}}, "%f5");
  CheckRows("cvt.rn.f32.u64 %f5, %rd1;", {{{(1ull << 63) + (1ull << 39) + 1}, F(0x1.000002p63f)}},
            "%f5");
  CheckRows("cvt.rn.f64.u64 %d5, %rd1;", {{{kOnes64}, D(0x1p64)}}, "%d5");
  CheckRows("cvt.rm.f64.s32 %d5, %r1;", {{{kOnes32}, D(-1)}}, "%d5");
  CheckRows("cvt.rn.f16.s32 %h5, %r1;",
            {{{2049}, H(2048)}, {{2051}, H(2052)}, {{100000}, H(kInfinity)}}, "%h5");
  CheckRows("cvt.rz.f16.u32 %h5, %r1;", {{{100000}, H(65504)}}, "%h5");
  CheckRows("cvt.rn.bf16.u64 %h5, %rd1;", {{{(0x101ull << 40) + 1}, B(0x1.02p48f)}}, "%h5");
  CheckRows("cvt.rn.f32.u8 %f5, %r1;", {{{0x1ff}, F(255)}}, "%f5");
  CheckRows("cvt.rn.sat.f32.s32 %f5, %r1;", {{{5}, F(1)}, {{kOnes32}, 0}}, "%f5");
  ExpectUnknown("cvt.f32.s32 %f5, %r1;");
  ExpectUnknown("cvt.rz.f64.u64 %d5, %rd1;");
}

TEST(Cvt, FloatsBecomeIntegersWithinTheirLimits) {
  CheckRows("cvt.rzi.s32.f32 %r5, %f1;", {{{F(-1.9f)}, kOnes32},
                                          {{F(1e10f)}, kMax32},
                                          {{F(-1e10f)}, kMin32},
                                          {{kNaN}, 0},
                                          {{F(kInfinity)}, kMax32}});
  CheckRows("cvt.rni.s32.f32 %r5, %f1;",
            {{{F(2.5f)}, 2}, {{F(3.5f)}, 4}, {{F(-2.5f)}, kOnes32 - 1}});
  CheckRows("cvt.rmi.s32.f32 %r5, %f1;", {{{F(-1.5f)}, kOnes32 - 1}, {{F(1.5f)}, 1}});
  CheckRows("cvt.rpi.s32.f32 %r5, %f1;", {{{F(-1.5f)}, kOnes32}, {{F(1.5f)}, 2}, {{1}, 1}});
  CheckRows("cvt.rpi.ftz.s32.f32 %r5, %f1;", {{{1}, 0}});
  CheckRows("cvt.rzi.u32.f32 %r5, %f1;",
            {{{F(-1)}, 0}, {{F(0x1p32f)}, kOnes32}, {{F(0x1.fffffep31f)}, 0xffffff00}});
  CheckRows("cvt.rzi.s64.f32 %rd5, %f1;",
            {{{F(0x1p63f)}, kMin64 - 1}, {{F(-0x1p63f)}, kMin64}, {{kNaN}, kMin64}}, "%rd5");
  CheckRows("cvt.rzi.u64.f64 %rd5, %d1;",
            {{{D(0x1p63)}, kMin64}, {{D(1e30)}, kOnes64}, {{D(NAN)}, kMin64}}, "%rd5");
  CheckRows("cvt.rni.s32.f64 %r5, %d1;", {{{D(0.5)}, 0}, {{D(1.5)}, 2}, {{D(NAN)}, kMin32}});
  CheckRows("cvt.rzi.s8.f32 %r5, %f1;", {{{F(-200)}, 0xffffff80}, {{F(200)}, 127}});
  CheckRows("cvt.rzi.u8.f16 %h5, %h1;", {{{H(300)}, 255}, {{H(7.5f)}, 7}}, "%h5");
  CheckRows("cvt.rmi.s32.bf16 %r5, %h1;", {{{B(-0.5f)}, kOnes32}});
  CheckRows("cvt.rzi.sat.s32.f32 %r5, %f1;", {{{F(1e10f)}, kMax32}});
  ExpectUnknown("cvt.s32.f32 %r5, %f1;");
  ExpectUnknown("cvt.rn.s32.f32 %r5, %f1;");
}

TEST(Cvt, FloatsGetNarrowerInAllDirections) {
  const uint64_t above = F(0x1.0010p0f);  // between 1 and the next f16
  CheckRows("cvt.rn.f16.f32 %h5, %f1;",
            {{{above}, H(1)}, {{F(65520)}, H(kInfinity)}, {{kNaN}, kNanF16}, {{F(0x1p-24f)}, 1}},
            "%h5");
  CheckRows("cvt.rz.f16.f32 %h5, %f1;",
            {{{F(0x1.003fp0f)}, H(1)}, {{F(1e6f)}, H(65504)}, {{F(kInfinity)}, H(kInfinity)}},
            "%h5");
  CheckRows("cvt.rp.f16.f32 %h5, %f1;",
            {{{above}, H(0x1.004p0f)}, {{F(-0x1.001p0f)}, H(-1)}, {{1}, 1}}, "%h5");
  CheckRows("cvt.rm.f16.f32 %h5, %f1;",
            {{{above}, H(1)}, {{F(-0x1.001p0f)}, H(-0x1.004p0f)}, {{0x80000001}, 0x8001}}, "%h5");
  CheckRows("cvt.rn.bf16.f32 %h5, %f1;",
            {{{F(0x1.01p0f)}, B(1)}, {{F(0x1.03p0f)}, B(0x1.04p0f)}, {{0xffc00000}, kNanBF16}},
            "%h5");
  CheckRows("cvt.rz.bf16.f32 %h5, %f1;", {{{F(0x1.01fp0f)}, B(1)}, {{F(3.4e38f)}, 0x7f7f}}, "%h5");
  CheckRows("cvt.rn.f32.f64 %f5, %d1;",
            {{{D(0x1.000001p0)}, F(1)},
             {{D(0x1.0000011p0)}, F(0x1.000002p0f)},
             {{D(1e300)}, F(kInfinity)}},
            "%f5");
  CheckRows("cvt.rz.f32.f64 %f5, %d1;",
            {{{D(1e300)}, F(0x1.fffffep127f)}, {{D(-0x1.0000019p0)}, F(-1)}}, "%f5");
  // A rounding by way of f32 would give 1.
  CheckRows("cvt.rn.f16.f64 %h5, %d1;", {{{D(0x1.002000001p0)}, H(0x1.004p0f)}}, "%h5");
  CheckRows("cvt.rn.bf16.f16 %h5, %h1;", {{{H(0x1.01p0f)}, B(1)}}, "%h5");
  CheckRows("cvt.rn.f16.bf16 %h5, %h1;", {{{B(0x1p20f)}, H(kInfinity)}}, "%h5");
  ExpectUnknown("cvt.f16.f32 %h5, %f1;");
  ExpectUnknown("cvt.rn.f32.f16 %f5, %h1;");
}

TEST(Cvt, FloatsGetWiderExactly) {
  CheckRows("cvt.f32.f16 %f5, %h1;",
            {{{1}, F(0x1p-24f)}, {{H(-2.5f)}, F(-2.5f)}, {{0x7c00}, F(kInfinity)}}, "%f5");
  CheckRows("cvt.f32.bf16 %f5, %h1;", {{{B(-2.5f)}, F(-2.5f)}}, "%f5");
  CheckRows("cvt.ftz.f32.bf16 %f5, %h1;", {{{0x8001}, kMin32}}, "%f5");
  CheckRows("cvt.f64.f32 %d5, %f1;", {{{F(0.1f)}, D(0.1f)}}, "%d5");
  CheckRows("cvt.f64.f32 %d5, 0.1;", {{{}, D(0.1f)}}, "%d5");
  CheckRows("cvt.ftz.f64.f32 %d5, %f1;", {{{1}, 0}}, "%d5");
  CheckRows("cvt.f64.bf16 %d5, %h1;", {{{B(3)}, D(3)}}, "%d5");
}

TEST(Cvt, ModifiersCutTheResult) {
  CheckRows("cvt.rn.relu.f16.f32 %h5, %f1;",
            {{{F(-3)}, 0}, {{F(3)}, H(3)}, {{kNaN}, kNanF16}, {{F(-0.0f)}, 0}}, "%h5");
  CheckRows("cvt.rn.satfinite.f16.f32 %h5, %f1;",
            {{{F(1e6f)}, H(65504)}, {{F(-kInfinity)}, H(-65504)}, {{kNaN}, kNanF16}}, "%h5");
  CheckRows("cvt.rn.satfinite.bf16.f32 %h5, %f1;",
            {{{F(kInfinity)}, 0x7f7f}, {{F(0x1.fffffep127f)}, 0x7f7f}}, "%h5");
  CheckRows("cvt.sat.f32.f32 %f5, %f1;", {{{F(3)}, F(1)}, {{kNaN}, 0}, {{F(-1)}, 0}}, "%f5");
  CheckRows("cvt.rn.sat.f16.f32 %h5, %f1;", {{{F(0.5f)}, H(0.5f)}, {{F(3)}, H(1)}}, "%h5");
  CheckRows("cvt.ftz.f32.f32 %f5, %f1;", {{{1}, 0}, {{F(2)}, F(2)}}, "%f5");
  CheckRows("cvt.rn.ftz.f32.f64 %f5, %d1;", {{{D(0x1p-140)}, 0}}, "%f5");
  ExpectUnknown("cvt.rp.sat.bf16.f32 %h5, %f1;");
}

TEST(Cvt, FloatsRoundToWholeNumbersInPlace) {
  CheckRows("cvt.rni.f32.f32 %f5, %f1;", {{{F(2.5f)}, F(2)}, {{F(-0.4f)}, F(-0.0f)}}, "%f5");
  CheckRows("cvt.rzi.f64.f64 %d5, %d1;", {{{D(-2.9)}, D(-2)}}, "%d5");
  CheckRows("cvt.rmi.f16.f16 %h5, %h1;", {{{H(-2.5f)}, H(-3)}}, "%h5");
  CheckRows("cvt.rpi.bf16.bf16 %h5, %h1;", {{{B(2.5f)}, B(3)}}, "%h5");
}

TEST(Cvt, TwoFloatsBecomeAPairWithTheFirstOneAbove) {
  CheckRows("cvt.rn.f16x2.f32 %r5, %f1, %f2;", {{{F(1), F(-2)}, H(1) << 16 | H(-2)}});
  CheckRows("cvt.rn.bf16x2.f32 %r5, %f1, 0f00000000;", {{{F(0x1.03p0f)}, B(0x1.04p0f) << 16}});
  CheckRows("cvt.rz.bf16x2.f32 %r5, %f1, %f2;",
            {{{F(0x1.03p0f), F(1)}, B(0x1.02p0f) << 16 | B(1)}});
  CheckRows("cvt.rn.relu.f16x2.f32 %r5, %f1, %f2;", {{{F(-1), F(2)}, H(2)}});
  CheckRows("cvt.rn.relu.satfinite.f16x2.f32 %r5, %f1, %f2;",
            {{{F(1e9f), F(-1e9f)}, H(65504) << 16}});
  CheckRows("cvt.rn.satfinite.e4m3x2.f32 %h5, %f1, %f2;",
            {{{F(1), F(-2)}, 0x38c0},
             {{F(1000), F(kInfinity)}, 0x7e7e},
             {{kNaN, F(0)}, 0x7f00},
             {{F(0x1p-9f), F(0x1p-10f)}, 0x0100}},
            "%h5");
  CheckRows("cvt.rn.satfinite.relu.e5m2x2.f32 %h5, %f1, %f2;", {{{F(-1), F(1e9f)}, 0x007b}}, "%h5");
  CheckRows("cvt.rn.satfinite.e4m3x2.f16x2 %h5, %r1;", {{{H(1) << 16 | H(-2)}, 0x38c0}}, "%h5");
  CheckRows("cvt.rn.f16x2.e4m3x2 %r5, %h1;",
            {{{0x38c0}, H(1) << 16 | H(-2)}, {{0x7f7e}, uint64_t{kNanF16} << 16 | H(448)}});
  CheckRows("cvt.rn.relu.f16x2.e5m2x2 %r5, %h1;",
            {{{0x3cbc}, H(1) << 16}, {{0x7c7b}, H(kInfinity) << 16 | H(57344)}});
  ExpectUnknown("cvt.rn.e4m3x2.f32 %h5, %f1, %f2;");
  ExpectUnknown("cvt.pack.sat.u8.s32.b32 %r5, %r1, %r2, %r3;");
}

TEST(Cvt, Tf32HasTenBitsOfMantissa) {
  CheckRows("cvt.rna.tf32.f32 %r5, %f1;", {{{F(0x1.002p0f)}, F(0x1.004p0f)},
                                           {{F(-0x1.001p0f)}, F(-1)},
                                           {{F(kInfinity)}, F(kInfinity)}});
  CheckRows("cvt.rn.tf32.f32 %r5, %f1;",
            {{{F(0x1.002p0f)}, F(1)}, {{F(0x1.006p0f)}, F(0x1.008p0f)}});
  CheckRows("cvt.rz.relu.tf32.f32 %r5, %f1;", {{{F(0x1.003ffep0f)}, F(1)}, {{F(-1)}, 0}});
  CheckRows("cvt.rna.satfinite.tf32.f32 %r5, %f1;",
            {{{F(kInfinity)}, 0x7f7fe000}, {{F(-0x1.fffffep127f)}, 0xff7fe000}});
}

TEST(Cvta, SharedAddressesGoThroughTheirWindow) {
  const TestRun run = RunBody(R"(
    .shared .align 16 .b32 word;
    mul.wide.u32 %rd1, %tid, 4; add.u64 %rd9, %out, %rd1;
    cvta.shared.u64 %rd2, word; mov.u64 %rd3, word; cvta.shared.u64 %rd4, %rd3;
    cvta.to.shared.u64 %rd5, %rd2;
    setp.eq.u64 %p1, %rd2, %rd4; setp.eq.and.u64 %p1, %rd5, %rd3, %p1;
    setp.ne.and.u64 %p1, %rd2, %rd3, %p1;
    isspacep.shared %p2, %rd2; isspacep.shared::cluster %p3, %rd2; isspacep.global %p4, %rd2;
    isspacep.global %p5, %out; isspacep.shared %p6, %out; isspacep.local %p7, %out;
    and.pred %p1, %p1, %p2; and.pred %p1, %p1, %p3; and.pred %p1, %p1, !%p4;
    and.pred %p1, %p1, %p5; and.pred %p1, %p1, !%p6; and.pred %p1, %p1, !%p7;
    selp.b32 %r1, 1, 0, %p1; st.global.u32 [%rd9], %r1;)");
  EXPECT_EQ(run.stop, "");
  for (const uint32_t word : run.out) EXPECT_EQ(word, 1u);
}

TEST(Cvta, AnAddressOfAnotherCtaIsSharedByTheClusterOnly) {
  TestLaunch launch;
  launch.ctas = launch.cluster = 2;
  launch.threads = 1;
  launch.out_words = 2;
  const TestRun run = RunBody(R"(
    .shared .align 16 .b32 word;
    mul.wide.u32 %rd1, %cta, 4; add.u64 %rd9, %out, %rd1;
    mov.u32 %r1, word; and.b32 %r1, %r1, 0xffffff; cvt.u64.u32 %rd2, %r1;
    cvta.shared::cluster.u64 %rd2, %rd2;
    isspacep.shared::cta %p1, %rd2; isspacep.shared::cluster %p2, %rd2;
    selp.b32 %r2, 1, 0, %p1; selp.b32 %r3, 10, 0, %p2; add.u32 %r2, %r2, %r3;
    st.global.u32 [%rd9], %r2;)",
                              launch);
  EXPECT_EQ(run.stop, "");
  EXPECT_EQ(run.out, (std::vector<uint32_t>{11, 10}));
}

TEST(Cvta, OtherSpacesKeepTheirAddresses) {
  CheckRows("cvta.global.u64 %rd5, %rd1;", {{{0x123456789a}, 0x123456789a}}, "%rd5");
  CheckRows("cvta.to.global.u64 %rd5, %rd1;", {{{0x123456789a}, 0x123456789a}}, "%rd5");
  CheckRows("cvta.local.u64 %rd4, %rd1; cvta.to.local.u64 %rd5, %rd4;", {{{64}, 64}}, "%rd5");
  CheckRows("cvta.param.u64 %rd4, %rd1; cvta.to.param.u64 %rd5, %rd4;", {{{8}, 8}}, "%rd5");
  CheckRows("cvta.param.u64 %rd4, %rd1; isspacep.param %p5, %rd4;", {{{8}, 1}}, "%p5");
  CheckRows("cvta.to.shared.u64 %rd5, %rd1;", {{{0x123456789a}, kOnes32}}, "%rd5");
  ExpectUnknown("cvta.shared.u32 %r5, %r1;");
  ExpectUnknown("isspacep.const %p5, %rd1;");
}

}  // namespace
}  // namespace ptx
