#include <gtest/gtest.h>

#include "tests/model/ptx/arithmetic/compute_rows.h"

namespace ptx {
namespace {

constexpr uint64_t kMin32 = 0x80000000, kMax32 = 0x7fffffff, kOnes32 = 0xffffffff;
constexpr uint64_t kMin64 = uint64_t{1} << 63, kOnes64 = ~uint64_t{0};

TEST(Arithmetic, SumsWrapAround) {
  CheckRows("add.u32 %r5, %r1, %r2;", {{{1, 2}, 3}, {{kOnes32, 2}, 1}, {{kMax32, 1}, kMin32}});
  CheckRows("add.s32 %r5, %r1, -2;", {{{1}, kOnes32}, {{kMin32}, kMax32 - 1}});
  CheckRows("sub.s32 %r5, %r1, %r2;", {{{1, 2}, kOnes32}, {{kMin32, 1}, kMax32}});
  CheckRows("add.u64 %rd5, %rd1, %rd2;", {{{kOnes64, 2}, 1}, {{kOnes32, 1}, kOnes32 + 1}}, "%rd5");
  CheckRows("sub.s64 %rd5, %rd1, %rd2;", {{{0, 1}, kOnes64}}, "%rd5");
  CheckRows("add.u16 %h5, %h1, %h2;", {{{0xffff, 2}, 1}, {{0x17fff, 1}, 0x8000}}, "%h5");
  CheckRows("sub.s16 %h5, %h1, %h2;", {{{0, 1}, 0xffff}}, "%h5");
}

TEST(Arithmetic, SaturatingSumsStopAtTheLimits) {
  CheckRows("add.sat.s32 %r5, %r1, %r2;",
            {{{kMax32, 1}, kMax32}, {{kMin32, kOnes32}, kMin32}, {{5, kOnes32}, 4}});
  CheckRows("sub.sat.s32 %r5, %r1, %r2;", {{{kMin32, 1}, kMin32}, {{kMax32, kOnes32}, kMax32}});
  CheckRows("mad.hi.sat.s32 %r5, %r1, %r2, %r3;", {{{0x40000000, 8, kMax32}, kMax32}});
  ExpectUnknown("add.sat.u32 %r5, %r1, %r2;");
}

TEST(Arithmetic, ProductsHaveAnUpperAndALowerHalf) {
  CheckRows("mul.lo.s32 %r5, %r1, %r2;", {{{kOnes32, 5}, kOnes32 - 4}, {{65536, 65537}, 65536}});
  CheckRows("mul.hi.u32 %r5, %r1, %r2;", {{{kOnes32, kOnes32}, kOnes32 - 1}, {{1, 2}, 0}});
  CheckRows("mul.hi.s32 %r5, %r1, %r2;", {{{kOnes32, kOnes32}, 0}, {{kMin32, 2}, kOnes32}});
  CheckRows("mul.hi.u64 %rd5, %rd1, %rd2;", {{{kOnes64, kOnes64}, kOnes64 - 1}}, "%rd5");
  CheckRows("mul.hi.s64 %rd5, %rd1, %rd2;",
            {{{kOnes64, 7}, kOnes64}, {{kMin64, kMin64}, kMin64 >> 1}}, "%rd5");
  CheckRows("mul.hi.u16 %h5, %h1, %h2;", {{{0xffff, 0xffff}, 0xfffe}}, "%h5");
  CheckRows("mul.hi.s16 %h5, %h1, %h2;", {{{0xffff, 2}, 0xffff}}, "%h5");
  CheckRows("mul.lo.u16 %h5, %h1, %h2;", {{{0xffff, 0xffff}, 1}}, "%h5");
  CheckRows("mul.wide.s32 %rd5, %r1, %r2;", {{{kOnes32, 5}, kOnes64 - 4}}, "%rd5");
  CheckRows("mul.wide.u32 %rd5, %r1, %r2;", {{{kOnes32, 5}, 5 * kOnes32}}, "%rd5");
  CheckRows("mul.wide.s16 %r5, %h1, %h2;", {{{0xffff, 5}, kOnes32 - 4}});
  CheckRows("mul.wide.u16 %r5, %h1, %h2;", {{{0xffff, 0xffff}, 0xfffe0001}});
  ExpectUnknown("mul.wide.u64 %rd5, %rd1, %rd2;");
  ExpectUnknown("mul.u32 %r5, %r1, %r2;");
}

TEST(Arithmetic, MadAddsToTheProduct) {
  CheckRows("mad.lo.s32 %r5, %r1, %r2, %r3;", {{{3, 4, 5}, 17}, {{kOnes32, 4, 5}, 1}});
  CheckRows("mad.hi.u32 %r5, %r1, %r2, %r3;", {{{kMin32, 4, 5}, 7}});
  CheckRows("mad.lo.u64 %rd5, %rd1, %rd2, %rd3;", {{{1ull << 40, 1ull << 20, 9}, (1ull << 60) + 9}},
            "%rd5");
  CheckRows("mad.wide.s32 %rd5, %r1, %r2, %rd3;", {{{kOnes32, 4, 5}, 1}}, "%rd5");
  CheckRows("mad.wide.u16 %r5, %h1, %h2, %r3;", {{{0xffff, 2, 1}, 0x1ffff}});
}

TEST(Arithmetic, QuotientsRoundToZero) {
  CheckRows("div.s32 %r5, %r1, %r2;",
            {{{kOnes32 - 6, 2}, kOnes32 - 2}, {{kMin32, kOnes32}, kMin32}});
  CheckRows("rem.s32 %r5, %r1, %r2;", {{{kOnes32 - 6, 2}, kOnes32}, {{kMin32, kOnes32}, 0}});
  CheckRows("div.u32 %r5, %r1, %r2;", {{{kOnes32, 2}, kMax32}});
  CheckRows("div.u64 %rd5, %rd1, %rd2;", {{{kOnes64, 10}, kOnes64 / 10}}, "%rd5");
  CheckRows("rem.s64 %rd5, %rd1, %rd2;", {{{kOnes64 - 9, 7}, kOnes64 - 2}}, "%rd5");
  CheckRows("div.s16 %h5, %h1, %h2;", {{{0x8000, 0xffff}, 0x8000}, {{0xfff9, 2}, 0xfffd}}, "%h5");
}

TEST(Arithmetic, DivisionByZeroGivesAllOnes) {
  CheckRows("div.u32 %r5, %r1, %r2;", {{{7, 0}, kOnes32}});
  CheckRows("rem.s32 %r5, %r1, %r2;", {{{7, 0}, kOnes32}});
}

TEST(Arithmetic, SignedAndUnsignedOrderDiffer) {
  CheckRows("min.s32 %r5, %r1, %r2;", {{{kOnes32, 1}, kOnes32}});
  CheckRows("min.u32 %r5, %r1, %r2;", {{{kOnes32, 1}, 1}});
  CheckRows("max.s64 %rd5, %rd1, %rd2;", {{{kMin64, 1}, 1}}, "%rd5");
  CheckRows("max.u16 %h5, %h1, %h2;", {{{0x8000, 1}, 0x8000}}, "%h5");
  CheckRows("max.relu.s32 %r5, %r1, %r2;", {{{kOnes32, kMin32}, 0}, {{3, 4}, 4}});
  CheckRows("abs.s32 %r5, %r1;", {{{kOnes32}, 1}, {{kMin32}, kMin32}, {{5}, 5}});
  CheckRows("abs.s16 %h5, %h1;", {{{0xfffe}, 2}}, "%h5");
  CheckRows("neg.s64 %rd5, %rd1;", {{{1}, kOnes64}, {{kMin64}, kMin64}}, "%rd5");
  CheckRows("sad.u32 %r5, %r1, %r2, %r3;", {{{2, 9, 1}, 8}, {{9, 2, kOnes32}, 6}});
  CheckRows("sad.s32 %r5, %r1, %r2, %r3;", {{{kOnes32, 1, 0}, 2}});
}

TEST(Arithmetic, PairsOfHalfWordsDoNotCarry) {
  CheckRows("add.u16x2 %r5, %r1, %r2;", {{{0x0001ffff, 0x00010001}, 0x00020000}});
  CheckRows("min.s16x2 %r5, %r1, %r2;", {{{0x8000ffff, 0x00010001}, 0x8000ffff}});
  CheckRows("max.u16x2 %r5, %r1, %r2;", {{{0x8000ffff, 0x00010001}, 0x8000ffff}});
  CheckRows("min.relu.s16x2 %r5, %r1, %r2;", {{{0x80000005, 0x00010001}, 0x00000001}});
  ExpectUnknown("sub.u16x2 %r5, %r1, %r2;");
  ExpectUnknown("min.relu.u16x2 %r5, %r1, %r2;");
}

TEST(Arithmetic, CarriesLinkSums) {
  CheckRows("add.cc.u32 %r4, %r1, %r3; addc.u32 %r5, %r2, 0;",
            {{{kOnes32, 7, 1}, 8}, {{5, 7, 1}, 7}, {{kOnes32, 7, 0}, 7}});
  CheckRows("sub.cc.u32 %r4, %r1, %r3; subc.u32 %r5, %r2, 0;",
            {{{5, 7, 6}, 6}, {{6, 7, 5}, 7}, {{5, 7, 5}, 7}});
  CheckRows("mad.lo.cc.u32 %r4, %r1, %r3, %r1; addc.u32 %r5, %r2, 1;",
            {{{kOnes32, 7, 2}, 9}, {{5, 7, 2}, 8}});
  CheckRows("add.cc.u32 %r4, %r1, %r3; madc.hi.u32 %r5, %r2, %r2, %r3;",
            {{{kOnes32, kMin32, 1}, 0x40000002}, {{1, kMin32, 1}, 0x40000001}});
}

TEST(Arithmetic, CarriesPassThroughSumsThatReadAndWriteThem) {
  CheckRows("add.cc.u32 %r4, %r1, %r3; addc.cc.u32 %r4, %r2, %r2; addc.u32 %r5, 0, 0;",
            {{{kOnes32, kMax32, 1}, 0}, {{kOnes32, kMin32, 1}, 1}, {{0, kOnes32, 1}, 1}});
  CheckRows("add.cc.u64 %rd4, %rd1, %rd3; addc.cc.u64 %rd4, %rd2, 0; addc.u32 %r5, 0, 0;",
            {{{kOnes64, kOnes64, 1}, 1}, {{kOnes64, 5, 1}, 0}});
  CheckRows("sub.cc.s32 %r4, %r1, %r3; subc.cc.s32 %r4, %r2, %r2; subc.u32 %r5, 0, 0;",
            {{{0, 9, 1}, kOnes32}, {{1, 9, 1}, 0}});
}

}  // namespace
}  // namespace ptx
