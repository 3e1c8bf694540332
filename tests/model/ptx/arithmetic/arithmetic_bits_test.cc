#include <gtest/gtest.h>

#include "tests/model/ptx/arithmetic/compute_rows.h"

namespace ptx {
namespace {

constexpr uint64_t kMin32 = 0x80000000, kOnes32 = 0xffffffff;
constexpr uint64_t kMin64 = uint64_t{1} << 63, kOnes64 = ~uint64_t{0};

TEST(Bits, ShiftsPastTheWidthGiveZeroOrTheSign) {
  CheckRows("shl.b32 %r5, %r1, %r2;",
            {{{1, 31}, kMin32}, {{1, 32}, 0}, {{1, kOnes32}, 0}, {{3, 0}, 3}});
  CheckRows("shr.u32 %r5, %r1, %r2;",
            {{{kMin32, 31}, 1}, {{kMin32, 32}, 0}, {{kMin32, kOnes32}, 0}});
  CheckRows("shr.s32 %r5, %r1, %r2;", {{{kMin32, 31}, kOnes32},
                                       {{kMin32, 32}, kOnes32},
                                       {{4, kOnes32}, 0},
                                       {{kMin32, 1}, 0xc0000000}});
  CheckRows("shr.b64 %rd5, %rd1, %r2;", {{{kMin64, 63}, 1}, {{kMin64, 64}, 0}}, "%rd5");
  CheckRows("shl.b64 %rd5, %rd1, %r2;", {{{1, 63}, kMin64}, {{1, 64}, 0}}, "%rd5");
  CheckRows("shr.s64 %rd5, %rd1, 100;", {{{kMin64}, kOnes64}}, "%rd5");
  CheckRows("shl.b16 %h5, %h1, %r2;", {{{0xffff, 15}, 0x8000}, {{1, 16}, 0}}, "%h5");
  CheckRows("shr.s16 %h5, %h1, %r2;", {{{0x8000, 3}, 0xf000}, {{0x8000, 99}, 0xffff}}, "%h5");
}

TEST(Bits, FunnelShiftsClampOrWrapTheirAmount) {
  constexpr uint64_t kLow = 0x89abcdef, kHigh = 0x01234567;
  CheckRows("shf.l.wrap.b32 %r5, %r1, %r2, %r3;", {{{kLow, kHigh, 4}, 0x12345678},
                                                   {{kLow, kHigh, 32}, kHigh},
                                                   {{kLow, kHigh, 36}, 0x12345678}});
  CheckRows("shf.l.clamp.b32 %r5, %r1, %r2, %r3;",
            {{{kLow, kHigh, 32}, kLow}, {{kLow, kHigh, 99}, kLow}});
  CheckRows("shf.r.wrap.b32 %r5, %r1, %r2, %r3;",
            {{{kLow, kHigh, 4}, 0x789abcde}, {{kLow, kHigh, 32}, kLow}});
  CheckRows("shf.r.clamp.b32 %r5, %r1, %r2, %r3;", {{{kLow, kHigh, 99}, kHigh}});
}

TEST(Bits, LogicWorksOnAllWidthsAndOnPredicates) {
  CheckRows("and.b32 %r5, %r1, %r2;", {{{0xff00ff00, 0x0ff00ff0}, 0x0f000f00}});
  CheckRows("or.b64 %rd5, %rd1, %rd2;", {{{kMin64, 1}, kMin64 | 1}}, "%rd5");
  CheckRows("xor.b16 %h5, %h1, 0x8000;", {{{0x3c00}, 0xbc00}}, "%h5");
  CheckRows("not.b16 %h5, %h1;", {{{0x1}, 0xfffe}}, "%h5");
  CheckRows("not.b32 %r5, %f1;", {{{0}, kOnes32}});
  CheckRows("cnot.b32 %r5, %r1;", {{{0}, 1}, {{7}, 0}});
  CheckRows("setp.ne.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r2, 0; and.pred %p5, %p1, !%p2;",
            {{{1, 0}, 1}, {{1, 1}, 0}, {{0, 0}, 0}}, "%p5");
  CheckRows("setp.ne.u32 %p1, %r1, 0; setp.ne.u32 %p2, %r2, 0; xor.pred %p5, %p1, %p2;",
            {{{1, 0}, 1}, {{1, 1}, 0}, {{0, 1}, 1}}, "%p5");
  CheckRows("setp.ne.u32 %p1, %r1, 0; or.pred %p5, %p1, 0;", {{{1}, 1}, {{0}, 0}}, "%p5");
  CheckRows("setp.ne.u32 %p1, %r1, 0; not.pred %p5, %p1;", {{{1}, 0}, {{0}, 1}}, "%p5");
}

TEST(Bits, Lop3LooksItsBitsUpInATable) {
  // The sources are the three patterns that spell the table.
  const auto check = [](const std::string& table, uint64_t result) {
    CheckRows("lop3.b32 %r5, %r1, %r2, %r3, " + table + ";", {{{0xf0, 0xcc, 0xaa}, result}});
  };
  check("0x80", 0x80);
  check("0x3f", 0xffffff3f);
  check("0x96", 0x96);
  check("0", 0);
  check("0xff", kOnes32);
  check("0x1a", 0x1a);
  ExpectUnknown("lop3.b32 %r5, %r1, %r2, %r3, 256;");
  ExpectUnknown("lop3.b32 %r5, %r1, %r2, %r3, %r4;");
}

TEST(Bits, Lop3JoinsItsResultWithAPredicate) {
  const std::string q = "setp.ne.u32 %p2, %r3, 0; ";
  CheckRows(q + "lop3.or.b32 %r5|%p5, %r1, %r2, 0, 0xc0, %p2;",
            {{{1, 2, 0}, 0}, {{1, 2, 1}, 1}, {{3, 2, 0}, 1}}, "%p5");
  CheckRows(q + "lop3.and.b32 _|%p5, %r1, %r2, 0, 0xc0, !%p2;",
            {{{3, 2, 0}, 1}, {{3, 2, 1}, 0}, {{1, 2, 0}, 0}}, "%p5");
  CheckRows(q + "lop3.and.b32 %r5|%p5, %r1, %r2, 0, 0xfc, %p2;", {{{1, 2, 0}, 3}});
}

TEST(Bits, BitsAreCountedFoundAndReversed) {
  CheckRows("popc.b32 %r5, %r1;", {{{0xf0f0}, 8}, {{0}, 0}});
  CheckRows("popc.b64 %r5, %rd1;", {{{kOnes64}, 64}});
  CheckRows("clz.b32 %r5, %r1;", {{{0}, 32}, {{1}, 31}});
  CheckRows("clz.b64 %r5, %rd1;", {{{0}, 64}, {{kMin64}, 0}});
  CheckRows("bfind.u32 %r5, %r1;", {{{0}, kOnes32}, {{0x10}, 4}, {{kMin32}, 31}});
  CheckRows("bfind.s32 %r5, %r1;", {{{kOnes32}, kOnes32}, {{kOnes32 - 16}, 4}, {{0x10}, 4}});
  CheckRows("bfind.shiftamt.u64 %r5, %rd1;", {{{1}, 63}, {{0}, kOnes32}});
  CheckRows("brev.b32 %r5, %r1;", {{{1}, kMin32}, {{0xf0}, 0x0f000000}});
  CheckRows("brev.b64 %rd5, %rd1;", {{{3}, 0xc000000000000000}}, "%rd5");
}

TEST(Bits, FieldsStopAtTheTopBit) {
  CheckRows("bfe.u32 %r5, %r1, %r2, %r3;", {{{0x12345678, 4, 8}, 0x67},
                                            {{0x12345678, 28, 8}, 1},
                                            {{kOnes32, 32, 8}, 0},
                                            {{kOnes32, 0, 32}, kOnes32},
                                            {{kOnes32, 4, 0}, 0},
                                            {{kOnes32, 0, 255}, kOnes32},
                                            {{0x12345678, 0x104, 0x108}, 0x67}});
  CheckRows("bfe.s32 %r5, %r1, %r2, %r3;", {{{0x12345678, 4, 4}, 7},
                                            {{0x12345688, 4, 4}, 0xfffffff8},
                                            {{kMin32, 40, 3}, kOnes32},
                                            {{kMin32, 31, 9}, kOnes32},
                                            {{kOnes32, 3, 0}, 0}});
  CheckRows("bfe.u64 %rd5, %rd1, %r2, %r3;",
            {{{0x123456789abcdef0, 60, 8}, 1}, {{kOnes64, 1, 64}, kOnes64 >> 1}}, "%rd5");
  CheckRows("bfe.s64 %rd5, %rd1, %r2, %r3;", {{{0x80, 7, 1}, kOnes64}}, "%rd5");
  CheckRows("bfi.b32 %r5, %r1, %r2, 8, 4;", {{{0x5a, 0}, 0xa00}, {{0, kOnes32}, 0xfffff0ff}});
  CheckRows("bfi.b32 %r5, %r1, %r2, %r3, 32;",
            {{{kOnes32, 0, 28}, 0xf0000000}, {{kOnes32, 5, 32}, 5}, {{7, 5, 0}, 7}});
  CheckRows("bfi.b64 %rd5, %rd1, %rd2, 60, 8;", {{{0xff, 1}, 0xf000000000000001}}, "%rd5");
}

TEST(Bits, MasksAndExtensionsClampOrWrap) {
  CheckRows(
      "bmsk.clamp.b32 %r5, %r1, %r2;",
      {{{4, 8}, 0xff0}, {{32, 1}, 0}, {{4, 99}, 0xfffffff0}, {{28, 8}, 0xf0000000}, {{3, 0}, 0}});
  CheckRows("bmsk.wrap.b32 %r5, %r1, %r2;", {{{36, 40}, 0xff0}, {{4, 32}, 0}});
  CheckRows("szext.clamp.s32 %r5, %r1, %r2;",
            {{{0xff, 8}, kOnes32}, {{0x7f, 8}, 0x7f}, {{kMin32, 32}, kMin32}, {{5, 0}, 0}});
  CheckRows("szext.wrap.u32 %r5, %r1, %r2;",
            {{{0x1ff, 8}, 0xff}, {{0x1ff, 32}, 0}, {{0x1ff, 33}, 1}});
}

TEST(Bits, PrmtPicksBytes) {
  constexpr uint64_t kA = 0x03020100, kB = 0x87060504;
  CheckRows("prmt.b32 %r5, %r1, %r2, %r3;", {{{kA, kB, 0x3210}, kA},
                                             {{kA, kB, 0x7654}, kB},
                                             {{kA, kB, 0x5140}, 0x05010400},
                                             {{kA, kB, 0xf7fb}, 0xff87ff00}});
  CheckRows("prmt.b32.f4e %r5, %r1, %r2, %r3;",
            {{{kA, kB, 1}, 0x04030201}, {{kA, kB, 7}, 0x06050403}});
  CheckRows("prmt.b32.b4e %r5, %r1, %r2, %r3;",
            {{{kA, kB, 0}, 0x05068700}, {{kA, kB, 3}, 0x00010203}});
  CheckRows("prmt.b32.rc8 %r5, %r1, %r2, %r3;", {{{kA, kB, 2}, 0x02020202}});
  CheckRows("prmt.b32.ecl %r5, %r1, %r2, %r3;", {{{kA, kB, 1}, 0x03020101}});
  CheckRows("prmt.b32.ecr %r5, %r1, %r2, %r3;", {{{kA, kB, 1}, 0x01010100}});
  CheckRows("prmt.b32.rc16 %r5, %r1, %r2, %r3;",
            {{{kA, kB, 1}, 0x03020302}, {{kA, kB, 2}, 0x01000100}});
}

TEST(Bits, DotProductsExtendTheirElements) {
  CheckRows("dp4a.u32.u32 %r5, %r1, %r2, %r3;", {{{0xff010101, 0x02010101, 7}, 510 + 3 + 7}});
  CheckRows("dp4a.s32.s32 %r5, %r1, %r2, %r3;", {{{0xff010101, 0x02010101, 7}, 8}});
  CheckRows("dp4a.s32.u32 %r5, %r1, %r2, %r3;", {{{0x000000ff, 0x000000ff, 0}, kOnes32 - 254}});
  CheckRows("dp2a.lo.s32.u32 %r5, %r1, %r2, %r3;", {{{0xffff0003, 0x04030201, 1}, 1 + 3 - 2}});
  CheckRows("dp2a.hi.u32.u32 %r5, %r1, %r2, %r3;",
            {{{0xffff0003, 0x04030201, 1}, 1 + 9 + 4 * 0xffff}});
}

TEST(Bits, RareFormsAreUnknown) {
  ExpectUnknown("mul24.lo.u32 %r5, %r1, %r2;");
  ExpectUnknown("fns.b32 %r5, %r1, %r2, %r3;");
  ExpectUnknown("and.u32 %r5, %r1, %r2;");
  ExpectUnknown("popc.b16 %r5, %h1;");
  ExpectUnknown("shl.b32 %r5, %r1, %rd2;");
  ExpectUnknown("add.u32 %rd5, %r1, %r2;");
  ExpectUnknown("vadd.u32.u32.u32 %r5, %r1, %r2;");
}

}  // namespace
}  // namespace ptx
