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
uint64_t HH(float low, float high) { return H(high) << 16 | H(low); }

constexpr float kInfinity = INFINITY;
constexpr uint64_t kOnes32 = 0xffffffff;
constexpr uint64_t kNaN = 0x7fffffff, kOtherNaN = 0xffc12345, kSubnormal = 1,
                   kLeastNormal = 0x00800000;
constexpr uint64_t kPayload64 = 0x7ff8000000001234;

TEST(FloatArithmetic, OperationsRoundToNearest) {
  CheckRows("add.f32 %f5, %f1, %f2;",
            {{{F(1), F(0x1p-24f)}, F(1)}, {{F(1), F(0x1.8p-24f)}, F(0x1.000002p0f)}}, "%f5");
  CheckRows("sub.rn.f32 %f5, %f1, %f2;", {{{F(1), F(3)}, F(-2)}, {{F(5), F(5)}, F(0)}}, "%f5");
  CheckRows("mul.f32 %f5, %f1, %f2;",
            {{{F(3), F(-7)}, F(-21)}, {{F(1e30f), F(1e30f)}, F(kInfinity)}}, "%f5");
  CheckRows("fma.rn.f32 %f5, %f1, %f2, %f3;",
            {{{F(0x1.000002p0f), F(0x1.000002p0f), F(-0x1.000004p0f)}, F(0x1p-46f)},
             {{F(2), F(3), F(4)}, F(10)}},
            "%f5");
  CheckRows("mad.rn.f32 %f5, %f1, %f2, %f3;", {{{F(2), F(3), F(4)}, F(10)}}, "%f5");
  CheckRows("div.rn.f32 %f5, %f1, %f2;",
            {{{F(1), F(3)}, F(1.0f / 3)}, {{F(1), F(0)}, F(kInfinity)}}, "%f5");
  CheckRows("rcp.rn.f32 %f5, %f1;", {{{F(4)}, F(0.25f)}, {{F(-0.0f)}, F(-kInfinity)}}, "%f5");
  CheckRows("sqrt.rn.f32 %f5, %f1;", {{{F(2)}, F(std::sqrt(2.0f))}, {{F(-1)}, kNaN}}, "%f5");
  CheckRows("add.f64 %d5, %d1, %d2;", {{{D(1), D(0x1p-53)}, D(1)}, {{D(1), D(2)}, D(3)}}, "%d5");
  CheckRows("fma.rn.f64 %d5, %d1, %d2, %d3;", {{{D(3), D(5), D(1)}, D(16)}}, "%d5");
  CheckRows("div.rn.f64 %d5, %d1, %d2;", {{{D(1), D(3)}, D(1.0 / 3)}}, "%d5");
}

TEST(FloatArithmetic, DirectedRoundingsTakeTheNeighbour) {
  const uint64_t one = F(1), next = F(0x1.000002p0f), tiny = F(0x1p-60f), last = F(0x1.fffffep127f);
  CheckRows("add.rz.f32 %f5, %f1, %f2;",
            {{{one, tiny}, one}, {{last, last}, last}, {{one, F(-0x1p-60f)}, F(0x1.fffffep-1f)}},
            "%f5");
  CheckRows("add.rp.f32 %f5, %f1, %f2;", {{{one, tiny}, next}, {{one, F(2)}, F(3)}}, "%f5");
  CheckRows("sub.rm.f32 %f5, %f1, %f2;",
            {{{F(-1), tiny}, F(-0x1.000002p0f)},
             {{one, tiny}, F(0x1.fffffep-1f)},
             {{one, one}, F(-0.0f)},
             {{0, F(-0.0f)}, 0}},
            "%f5");
  CheckRows("mul.rp.f32 %f5, %f1, %f2;",
            {{{next, next}, F(0x1.000006p0f)}, {{F(0x1p-100f), F(0x1p-100f)}, kSubnormal}}, "%f5");
  CheckRows("fma.rz.f32 %f5, %f1, %f2, %f3;",
            {{{one, next, F(0x1p-25f)}, next}, {{one, next, F(-0x1p-25f)}, one}}, "%f5");
  CheckRows("div.rp.f32 %f5, %f1, %f2;",
            {{{one, F(3)}, F(0x1.555556p-2f)}, {{F(-1), F(3)}, F(-0x1.555554p-2f)}}, "%f5");
  CheckRows("rcp.rm.f32 %f5, %f1;", {{{F(3)}, F(0x1.555554p-2f)}, {{F(2)}, F(0.5f)}}, "%f5");
  CheckRows("sqrt.rp.f32 %f5, %f1;", {{{F(2)}, F(0x1.6a09e8p0f)}, {{F(4)}, F(2)}}, "%f5");
  CheckRows("sqrt.rz.f32 %f5, %f1;", {{{F(2)}, F(0x1.6a09e6p0f)}, {{F(kInfinity)}, F(kInfinity)}},
            "%f5");
  ExpectUnknown("add.rz.f64 %d5, %d1, %d2;");
}

TEST(FloatArithmetic, AResultThatIsNoNumberHasTheCanonicalBits) {
  CheckRows("add.f32 %f5, %f1, %f2;",
            {{{kOtherNaN, F(1)}, kNaN}, {{F(kInfinity), F(-kInfinity)}, kNaN}}, "%f5");
  CheckRows("mul.ftz.f32 %f5, %f1, %f2;", {{{0, F(kInfinity)}, kNaN}}, "%f5");
  CheckRows("fma.rp.f32 %f5, %f1, %f2, %f3;", {{{kOtherNaN, F(1), F(1)}, kNaN}}, "%f5");
  CheckRows("add.f64 %d5, %d1, %d2;", {{{kPayload64, D(1)}, kPayload64}}, "%d5");
}

TEST(FloatArithmetic, FtzFlushesSourcesAndResults) {
  CheckRows("add.ftz.f32 %f5, %f1, %f2;",
            {{{kSubnormal, kSubnormal}, 0}, {{kLeastNormal, 0x80800001}, 0x80000000}}, "%f5");
  CheckRows("add.f32 %f5, %f1, %f2;", {{{kSubnormal, kSubnormal}, 2}}, "%f5");
  CheckRows("mul.ftz.f32 %f5, %f1, %f2;",
            {{{kLeastNormal, F(-0.5f)}, 0x80000000}, {{kSubnormal, F(0x1p100f)}, 0}}, "%f5");
  CheckRows("fma.rn.ftz.f32 %f5, %f1, %f2, %f3;",
            {{{F(1), F(1), kSubnormal}, F(1)}, {{0, 0, kSubnormal}, 0}}, "%f5");
  CheckRows("fma.rz.ftz.f32 %f5, %f1, %f2, %f3;", {{{0, 0, kSubnormal}, 0}}, "%f5");
  CheckRows("neg.ftz.f32 %f5, %f1;", {{{kSubnormal}, 0x80000000}}, "%f5");
  CheckRows("abs.f32 %f5, %f1;", {{{F(-3)}, F(3)}}, "%f5");
  CheckRows("neg.f64 %d5, %d1;", {{{D(0)}, D(-0.0)}}, "%d5");
}

TEST(FloatArithmetic, SatClampsToTheUnitInterval) {
  CheckRows("add.sat.f32 %f5, %f1, %f2;",
            {{{F(2), F(3)}, F(1)},
             {{F(-2), F(1)}, 0},
             {{F(0.25f), F(0.25f)}, F(0.5f)},
             {{kNaN, F(1)}, 0}},
            "%f5");
  CheckRows("fma.rn.ftz.sat.f32 %f5, %f1, %f2, %f3;",
            {{{F(2), F(2), F(2)}, F(1)}, {{F(-0.0f), F(1), F(-0.0f)}, 0}}, "%f5");
  ExpectUnknown("rcp.rn.sat.f32 %f5, %f1;");
}

TEST(FloatArithmetic, DecimalLiteralsFitBothTypes) {
  CheckRows("add.f32 %f5, %f1, 0.1;", {{{F(0)}, F(0.1f)}}, "%f5");
  CheckRows("mul.f32 %f5, %f1, 0fC0000000;", {{{F(3)}, F(-6)}}, "%f5");
  CheckRows("fma.rn.f32 %f5, %f1, 0d4000000000000000, -1.5;", {{{F(3)}, F(4.5f)}}, "%f5");
  CheckRows("add.f64 %d5, %d1, 0.1;", {{{D(0)}, D(0.1)}}, "%d5");
  CheckRows("mov.f32 %f5, -2.5;", {{{}, F(-2.5f)}}, "%f5");
  CheckRows("setp.gt.f32 %p5, %f1, 1.5;", {{{F(2)}, 1}, {{F(1)}, 0}}, "%p5");
  CheckRows("selp.f32 %f5, 1.5, 0f00000000, 1;", {{{}, F(1.5f)}}, "%f5");
  ExpectUnknown("add.f32 %f5, %f1, 1;");
  ExpectUnknown("add.f64 %d5, %d1, 0f3F800000;");
}

TEST(FloatArithmetic, ExtremaPreferNumbersUnlessAskedForNaN) {
  CheckRows("min.f32 %f5, %f1, %f2;",
            {{{F(1), F(2)}, F(1)},
             {{kOtherNaN, F(2)}, F(2)},
             {{F(1), kOtherNaN}, F(1)},
             {{kOtherNaN, kOtherNaN}, kNaN},
             {{F(0), F(-0.0f)}, F(-0.0f)},
             {{F(-0.0f), F(0)}, F(-0.0f)}},
            "%f5");
  CheckRows("max.f32 %f5, %f1, %f2;",
            {{{F(0), F(-0.0f)}, F(0)}, {{F(-0.0f), F(0)}, F(0)}, {{F(1), F(2)}, F(2)}}, "%f5");
  CheckRows("max.NaN.f32 %f5, %f1, %f2;", {{{kOtherNaN, F(2)}, kNaN}, {{F(1), F(2)}, F(2)}}, "%f5");
  CheckRows("min.xorsign.abs.f32 %f5, %f1, %f2;",
            {{{F(-1), F(2)}, F(-1)}, {{F(-3), F(-2)}, F(2)}, {{F(-3), kNaN}, F(-3)}}, "%f5");
  CheckRows("max.ftz.f32 %f5, %f1, %f2;", {{{kSubnormal, F(-1)}, 0}}, "%f5");
  CheckRows("min.f64 %d5, %d1, %d2;", {{{D(1), D(-2)}, D(-2)}, {{kPayload64, D(1)}, D(1)}}, "%d5");
  ExpectUnknown("min.f32 %f5, %f1, %f2, %f3;");
}

TEST(FloatArithmetic, ApproximateFunctionsAreRoundedExactly) {
  CheckRows("ex2.approx.ftz.f32 %f5, %f1;",
            {{{F(3)}, F(8)}, {{F(-kInfinity)}, 0}, {{F(-140)}, 0}, {{F(0.5f)}, F(std::sqrt(2.0f))}},
            "%f5");
  CheckRows("ex2.approx.f32 %f5, %f1;", {{{F(-140)}, F(0x1p-140f)}}, "%f5");
  CheckRows("lg2.approx.f32 %f5, %f1;", {{{F(8)}, F(3)}, {{F(-1)}, kNaN}, {{0}, F(-kInfinity)}},
            "%f5");
  CheckRows("rsqrt.approx.f32 %f5, %f1;", {{{F(4)}, F(0.5f)}, {{0}, F(kInfinity)}}, "%f5");
  CheckRows("sqrt.approx.ftz.f32 %f5, %f1;", {{{F(9)}, F(3)}, {{kSubnormal}, 0}}, "%f5");
  CheckRows("rcp.approx.ftz.f32 %f5, %f1;", {{{F(8)}, F(0.125f)}, {{kSubnormal}, F(kInfinity)}},
            "%f5");
  CheckRows("tanh.approx.f32 %f5, %f1;", {{{0}, 0}, {{F(100)}, F(1)}}, "%f5");
  CheckRows("sin.approx.f32 %f5, %f1;", {{{0}, 0}, {{F(kInfinity)}, kNaN}}, "%f5");
  CheckRows("cos.approx.f32 %f5, %f1;", {{{0}, F(1)}}, "%f5");
  CheckRows("div.full.f32 %f5, %f1, %f2;", {{{F(1), F(3)}, F(1.0f / 3)}}, "%f5");
  CheckRows("div.approx.f32 %f5, %f1, %f2;",
            {{{F(6), F(3)}, F(2)},
             {{F(1), F(-0x1p127f)}, F(-0.0f)},
             {{F(kInfinity), F(0x1p127f)}, kNaN},
             {{F(1), F(0x1p126f)}, kLeastNormal}},
            "%f5");
  CheckRows("rcp.approx.ftz.f64 %d5, %d1;",
            {{{D(3)}, D(1.0 / 3) & ~kOnes32}, {{D(4) + 5}, D(0.25)}, {{1}, D(INFINITY)}}, "%d5");
  CheckRows("rsqrt.approx.ftz.f64 %d5, %d1;", {{{D(16)}, D(0.25)}}, "%d5");
  ExpectUnknown("sqrt.approx.ftz.f64 %d5, %d1;");
  ExpectUnknown("rsqrt.approx.f64 %d5, %d1;");
  ExpectUnknown("ex2.f32 %f5, %f1;");
}

TEST(FloatArithmetic, SignsAreCopied) {
  CheckRows("copysign.f32 %f5, %f1, %f2;", {{{F(-1), F(5)}, F(-5)}, {{F(1), F(-5)}, F(5)}}, "%f5");
  CheckRows("copysign.f64 %d5, %d1, %d2;", {{{D(-1), D(5)}, D(-5)}}, "%d5");
}

TEST(HalfArithmetic, OperationsRoundOnce) {
  CheckRows("add.f16 %h5, %h1, %h2;",
            {{{H(1), H(0x1p-11f)}, H(1)}, {{H(65504), H(16)}, H(kInfinity)}}, "%h5");
  CheckRows("sub.f16x2 %r5, %r1, %r2;", {{{HH(1, 2), HH(3, 5)}, HH(-2, -3)}});
  CheckRows("mul.rn.bf16 %h5, %h1, %h2;",
            {{{B(3), B(-5)}, B(-15)}, {{B(0x1.02p0f), B(0x1.02p0f)}, B(0x1.04p0f)}}, "%h5");
  CheckRows("add.bf16x2 %r5, %r1, %r2;",
            {{{B(1) << 16 | B(2), B(4) << 16 | B(8)}, B(5) << 16 | B(10)}});
  // The exact sum lies just above the middle of two numbers: a rounding to f32 first would lose
  // that.
  CheckRows("fma.rn.f16 %h5, %h1, %h2, %h3;",
            {{{H(0x1.004p0f), H(0x1.004p0f), H(0)}, H(0x1.008p0f)},
             {{H(0x1.04p6f), H(0x1.f8p5f), H(0x1p-24f)}, H(4096)},
             {{H(0x1.04p6f), H(0x1.f8p5f), H(-0x1p-24f)}, H(4094)}},
            "%h5");
  CheckRows("fma.rn.bf16 %h5, %h1, %h2, %h3;",
            {{{B(0x1.02p0f), B(0x1.8p0f), B(0x1p-100f)}, B(0x1.84p0f)},
             {{B(0x1.02p0f), B(0x1.8p0f), B(-0x1p-100f)}, B(0x1.82p0f)}},
            "%h5");
  CheckRows("fma.rn.bf16x2 %r5, %r1, %r2, %r3;",
            {{{B(2) << 16 | B(3), B(5) << 16 | B(7), B(1) << 16 | B(-1)}, B(11) << 16 | B(20)}});
}

TEST(HalfArithmetic, ModifiersFlushSaturateAndCut) {
  CheckRows(
      "fma.rn.relu.f16 %h5, %h1, %h2, %h3;",
      {{{H(1), H(2), H(-3)}, 0}, {{H(1), H(2), H(3)}, H(5)}, {{kNanF16, H(1), H(1)}, kNanF16}},
      "%h5");
  CheckRows("fma.rn.sat.f16x2 %r5, %r1, %r2, %r3;", {{{HH(1, -1), HH(2, 2), HH(3, 3)}, HH(1, 1)}});
  CheckRows("add.ftz.f16 %h5, %h1, %h2;", {{{1, H(0)}, 0}, {{0x0400, 0x8401}, 0x8000}}, "%h5");
  CheckRows("add.sat.f16 %h5, %h1, %h2;", {{{H(3), H(4)}, H(1)}, {{kNanF16, H(1)}, 0}}, "%h5");
  ExpectUnknown("add.ftz.bf16 %h5, %h1, %h2;");
  ExpectUnknown("fma.rn.oob.f16 %h5, %h1, %h2, %h3;");
  ExpectUnknown("fma.f16 %h5, %h1, %h2, %h3;");
  ExpectUnknown("add.f16 %h5, %h1, 0x3c00;");
}

TEST(HalfArithmetic, SignsAndExtremaWorkOnBits) {
  CheckRows("neg.f16x2 %r5, %r1;", {{{HH(1, -2)}, HH(-1, 2)}});
  CheckRows("abs.bf16 %h5, %h1;", {{{B(-2)}, B(2)}}, "%h5");
  CheckRows("min.f16 %h5, %h1, %h2;",
            {{{H(1), H(-2)}, H(-2)},
             {{0xfe01, H(3)}, H(3)},
             {{0xfe01, 0xfe01}, kNanF16},
             {{H(0), 0x8000}, 0x8000}},
            "%h5");
  CheckRows("max.NaN.bf16 %h5, %h1, %h2;", {{{0xffc1, B(3)}, kNanBF16}, {{B(1), B(3)}, B(3)}},
            "%h5");
  CheckRows("max.xorsign.abs.f16x2 %r5, %r1, %r2;", {{{HH(1, -4), HH(-2, -3)}, HH(-2, 4)}});
  CheckRows("max.bf16x2 %r5, %r1, %r2;",
            {{{B(1) << 16 | B(4), B(2) << 16 | B(3)}, B(2) << 16 | B(4)}});
}

TEST(HalfArithmetic, FunctionsExist) {
  CheckRows("ex2.approx.f16x2 %r5, %r1;", {{{HH(3, -1)}, HH(8, 0.5f)}});
  CheckRows("ex2.approx.ftz.bf16 %h5, %h1;", {{{B(4)}, B(16)}}, "%h5");
  CheckRows("tanh.approx.bf16x2 %r5, %r1;", {{{B(100) << 16}, B(1) << 16}});
  CheckRows("tanh.approx.f16 %h5, %h1;", {{{H(0.5f)}, H(std::tanh(0.5f))}}, "%h5");
}

}  // namespace
}  // namespace ptx
