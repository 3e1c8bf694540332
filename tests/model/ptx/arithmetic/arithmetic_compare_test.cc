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

constexpr uint64_t kOnes32 = 0xffffffff, kOnes64 = ~uint64_t{0}, kNaN = 0x7fffffff;

// The results of a comparison for less, equal, greater and unordered sources.
void CheckFloats(const std::string& name, int less, int equal, int greater, int unordered) {
  const auto bit = [](int value) { return static_cast<uint64_t>(value); };
  CheckRows("setp." + name + ".f32 %p5, %f1, %f2;",
            {{{F(1), F(2)}, bit(less)},
             {{F(0), F(-0.0f)}, bit(equal)},
             {{F(2), F(1)}, bit(greater)},
             {{kNaN, F(1)}, bit(unordered)},
             {{F(1), kNaN}, bit(unordered)},
             {{kNaN, kNaN}, bit(unordered)}},
            "%p5");
  CheckRows("setp." + name + ".f64 %p5, %d1, %d2;",
            {{{D(1), D(2)}, bit(less)},
             {{D(2), D(2)}, bit(equal)},
             {{D(2), D(1)}, bit(greater)},
             {{D(NAN), D(1)}, bit(unordered)}},
            "%p5");
  CheckRows("setp." + name + ".bf16 %p5, %h1, %h2;",
            {{{B(1), B(2)}, bit(less)},
             {{B(2), B(2)}, bit(equal)},
             {{B(2), B(1)}, bit(greater)},
             {{kNanBF16, B(1)}, bit(unordered)}},
            "%p5");
}

TEST(Compare, FloatsAreLessEqualGreaterOrUnordered) {
  CheckFloats("eq", 0, 1, 0, 0);
  CheckFloats("ne", 1, 0, 1, 0);
  CheckFloats("lt", 1, 0, 0, 0);
  CheckFloats("le", 1, 1, 0, 0);
  CheckFloats("gt", 0, 0, 1, 0);
  CheckFloats("ge", 0, 1, 1, 0);
  CheckFloats("equ", 0, 1, 0, 1);
  CheckFloats("neu", 1, 0, 1, 1);
  CheckFloats("ltu", 1, 0, 0, 1);
  CheckFloats("leu", 1, 1, 0, 1);
  CheckFloats("gtu", 0, 0, 1, 1);
  CheckFloats("geu", 0, 1, 1, 1);
  CheckFloats("num", 1, 1, 1, 0);
  CheckFloats("nan", 0, 0, 0, 1);
}

TEST(Compare, IntegersHaveASignOrNot) {
  CheckRows("setp.lt.s32 %p5, %r1, %r2;", {{{kOnes32, 1}, 1}, {{1, kOnes32}, 0}, {{1, 1}, 0}},
            "%p5");
  CheckRows("setp.lt.u32 %p5, %r1, %r2;", {{{kOnes32, 1}, 0}, {{1, kOnes32}, 1}}, "%p5");
  CheckRows("setp.lo.u32 %p5, %r1, %r2;", {{{1, 2}, 1}, {{2, 2}, 0}}, "%p5");
  CheckRows("setp.ls.u64 %p5, %rd1, %rd2;", {{{kOnes64, kOnes64}, 1}, {{kOnes64, 2}, 0}}, "%p5");
  CheckRows("setp.hi.u16 %p5, %h1, %h2;", {{{0xffff, 1}, 1}, {{1, 1}, 0}}, "%p5");
  CheckRows("setp.hs.u32 %p5, %r1, 5;", {{{5}, 1}, {{4}, 0}}, "%p5");
  CheckRows("setp.ge.s16 %p5, %h1, -1;", {{{0xffff}, 1}, {{0xfffe}, 0}}, "%p5");
  CheckRows("setp.ne.b64 %p5, %rd1, %rd2;", {{{1ull << 40, 0}, 1}, {{7, 7}, 0}}, "%p5");
  CheckRows("setp.le.s64 %p5, %rd1, 0;", {{{kOnes64}, 1}, {{1}, 0}}, "%p5");
  ExpectUnknown("setp.lo.s32 %p5, %r1, %r2;");
  ExpectUnknown("setp.lt.b32 %p5, %r1, %r2;");
  ExpectUnknown("setp.equ.u32 %p5, %r1, %r2;");
}

TEST(Compare, TheSecondResultIsThatOfTheComplement) {
  const std::string q = "setp.ne.u32 %p2, %r3, 0; ";
  const auto check = [&](const std::string& rest, const std::vector<Row>& rows) {
    CheckRows(q + rest, rows, "%p5");
  };
  check("setp.lt.u32 %p5|%p1, %r1, %r2;", {{{1, 2}, 1}, {{2, 1}, 0}});
  check("setp.lt.u32 %p1|%p5, %r1, %r2;", {{{1, 2}, 0}, {{2, 1}, 1}});
  check("setp.lt.u32 _|%p5, %r1, %r2;", {{{1, 2}, 0}, {{2, 1}, 1}});
  check("setp.lt.and.u32 %p5|%p1, %r1, %r2, %p2;",
        {{{1, 2, 1}, 1}, {{1, 2, 0}, 0}, {{2, 1, 1}, 0}});
  check("setp.lt.and.u32 %p1|%p5, %r1, %r2, %p2;",
        {{{1, 2, 1}, 0}, {{2, 1, 1}, 1}, {{2, 1, 0}, 0}});
  check("setp.lt.or.u32 %p1|%p5, %r1, %r2, !%p2;",
        {{{1, 2, 1}, 0}, {{1, 2, 0}, 1}, {{2, 1, 1}, 1}});
  check("setp.lt.xor.u32 %p5, %r1, %r2, %p2;", {{{1, 2, 1}, 0}, {{1, 2, 0}, 1}, {{2, 1, 1}, 1}});
}

TEST(Compare, FtzComparesSubnormalsAsZero) {
  CheckRows("setp.eq.ftz.f32 %p5, %f1, %f2;", {{{1, 0x80000001}, 1}, {{1, 0x00800000}, 0}}, "%p5");
  CheckRows("setp.eq.f32 %p5, %f1, %f2;", {{{1, 0x80000001}, 0}}, "%p5");
  CheckRows("setp.gt.ftz.f16 %p5, %h1, %h2;", {{{1, 0}, 0}, {{0x0400, 0}, 1}}, "%p5");
  ExpectUnknown("setp.eq.ftz.bf16 %p5, %h1, %h2;");
}

TEST(Compare, BothHalvesOfAWordHaveAResult) {
  CheckRows("setp.lt.f16x2 %p5|%p1, %r1, %r2;",
            {{{HH(1, 5), HH(2, 4)}, 1}, {{HH(5, 1), HH(4, 2)}, 0}}, "%p5");
  CheckRows("setp.lt.f16x2 %p1|%p5, %r1, %r2;",
            {{{HH(1, 5), HH(2, 4)}, 0}, {{HH(5, 1), HH(4, 2)}, 1}}, "%p5");
  CheckRows("setp.ne.u32 %p2, %r3, 0; setp.ge.and.bf16x2 %p1|%p5, %r1, %r2, %p2;",
            {{{B(3) << 16, B(2) << 16, 1}, 1}, {{B(3) << 16, B(2) << 16, 0}, 0}}, "%p5");
}

TEST(Compare, SetWritesTheTruthInItsType) {
  CheckRows("set.lt.u32.s32 %r5, %r1, %r2;", {{{kOnes32, 0}, kOnes32}, {{1, 0}, 0}});
  CheckRows("set.lt.f32.f32 %f5, %f1, %f2;", {{{F(1), F(2)}, F(1)}, {{F(2), F(1)}, 0}}, "%f5");
  CheckRows("setp.ne.u32 %p2, %r3, 0; set.eq.and.s32.b32 %r5, %r1, %r2, !%p2;",
            {{{4, 4, 0}, kOnes32}, {{4, 4, 1}, 0}});
  CheckRows("set.gt.f16x2.f16x2 %r5, %r1, %r2;", {{{HH(1, 5), HH(2, 4)}, H(1) << 16}});
  CheckRows("set.gtu.u32.f16x2 %r5, %r1, %r2;",
            {{{HH(1, 5), HH(2, 4)}, 0xffff0000}, {{kNanF16, HH(2, 4)}, 0xffff}});
  CheckRows("set.eq.bf16.f32 %h5, %f1, %f2;", {{{F(1), F(1)}, B(1)}}, "%h5");
  CheckRows("set.eq.u16.f16 %h5, %h1, %h2;", {{{H(1), H(1)}, 0xffff}}, "%h5");
  ExpectUnknown("set.lt.u16.f32 %h5, %f1, %f2;");
}

TEST(Compare, SelectionsFollowAPredicateOrASign) {
  CheckRows("setp.ne.u32 %p2, %r3, 0; selp.b32 %r5, %r1, %r2, %p2;",
            {{{7, 9, 1}, 7}, {{7, 9, 0}, 9}});
  CheckRows("setp.ne.u32 %p2, %r3, 0; selp.u64 %rd5, %rd1, -1, !%p2;",
            {{{7, 0, 1}, kOnes64}, {{7, 0, 0}, 7}}, "%rd5");
  CheckRows("setp.ne.u32 %p2, %r3, 0; selp.f32 %f5, %f1, 0f3F800000, %p2;",
            {{{kNaN - 5, 0, 1}, kNaN - 5}, {{7, 0, 0}, F(1)}}, "%f5");
  CheckRows("setp.ne.u32 %p2, %r3, 0; selp.b16 %h5, %h1, -1, %p2;", {{{7, 0, 0}, 0xffff}}, "%h5");
  CheckRows("slct.u32.s32 %r5, %r1, %r2, %r3;", {{{7, 9, 0}, 7}, {{7, 9, kOnes32}, 9}});
  CheckRows("slct.b64.f32 %rd5, %rd1, %rd2, %f3;",
            {{{7, 9, F(-0.0f)}, 7}, {{7, 9, F(-1)}, 9}, {{7, 9, kNaN}, 9}, {{7, 9, 0x80000001}, 9}},
            "%rd5");
  CheckRows("slct.ftz.u32.f32 %r5, %r1, %r2, %f3;", {{{7, 9, 0x80000001}, 7}});
}

TEST(Compare, TestpKnowsTheKindsOfNumbers) {
  constexpr uint64_t kInfinity = 0x7f800000, kSubnormal = 1;
  const auto check = [&](const std::string& property, uint64_t one, uint64_t infinity, uint64_t nan,
                         uint64_t subnormal, uint64_t zero) {
    CheckRows("testp." + property + ".f32 %p5, %f1;",
              {{{F(1)}, one},
               {{kInfinity}, infinity},
               {{kNaN}, nan},
               {{kSubnormal}, subnormal},
               {{0}, zero}},
              "%p5");
  };
  check("finite", 1, 0, 0, 1, 1);
  check("infinite", 0, 1, 0, 0, 0);
  check("number", 1, 1, 0, 1, 1);
  check("notanumber", 0, 0, 1, 0, 0);
  check("normal", 1, 0, 0, 0, 1);
  check("subnormal", 0, 0, 0, 1, 0);
  CheckRows("testp.subnormal.f64 %p5, %d1;", {{{1}, 1}, {{D(1)}, 0}}, "%p5");
}

}  // namespace
}  // namespace ptx
