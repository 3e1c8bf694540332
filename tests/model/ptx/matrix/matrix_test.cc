// ldmatrix, stmatrix, movmatrix and mma, against the fragments as the PTX ISA draws them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "tests/model/ptx/engine/test_kernel.h"

namespace ptx {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;

// Four matrices of 8 x 8 elements of 16 bits: the one of row r and column c of matrix i is
// i * 256 + r * 16 + c. Row r of matrix i lies at smem + 16 * (8 * i + r), and lane 8 * i + r has
// that address in %r1.
uint32_t Element(int matrix, int row, int column) { return matrix * 256 + row * 16 + column; }

const std::string kWrite = R"(
  .shared .align 16 .b8 smem[512];
  mov.u32 %r0, smem;
  shl.b32 %r1, %tid, 4;
  add.u32 %r1, %r1, %r0;
  shr.u32 %r2, %tid, 3;
  shl.b32 %r2, %r2, 8;
  and.b32 %r3, %tid, 7;
  shl.b32 %r3, %r3, 4;
  add.u32 %r2, %r2, %r3;
  mul.lo.u32 %r2, %r2, 0x10001;
  add.u32 %r4, %r2, 0x10000;
  add.u32 %r5, %r2, 0x30002;
  add.u32 %r6, %r2, 0x50004;
  add.u32 %r7, %r2, 0x70006;
  st.shared.v4.u32 [%r1], {%r4, %r5, %r6, %r7};
  bar.warp.sync 0xffffffff;
)";

// Stores registers of each lane at %out + 4 * lane + 128 * i.
std::string Store(const std::vector<std::string>& registers) {
  std::string text = "mul.wide.u32 %rd9, %tid, 4;\nadd.u64 %rd9, %rd9, %out;\n";
  for (size_t i = 0; i < registers.size(); ++i) {
    text += "st.global.b32 [%rd9+" + std::to_string(i * 128) + "], " + registers[i] + ";\n";
  }
  return text;
}

TestRun RunClean(const std::string& body, TestLaunch launch = {}) {
  launch.out_words = std::max<size_t>(launch.out_words, 128);
  TestRun run = RunBody(body, launch);
  EXPECT_EQ(run.stop, "");
  EXPECT_THAT(run.findings, IsEmpty());
  return run;
}

TEST(Matrix, LdmatrixGivesEachLaneTwoElementsOfARow) {
  for (const int count : {1, 2, 4}) {
    const std::string targets = count == 1   ? "{%r10}"
                                : count == 2 ? "{%r10, %r11}"
                                             : "{%r10, %r11, %r12, %r13}";
    const TestRun run =
        RunClean(kWrite + "ldmatrix.sync.aligned.m8n8.x" + std::to_string(count) + ".shared.b16 " +
                 targets + ", [%r1];\n" + Store({"%r10", "%r11", "%r12", "%r13"}));
    for (int i = 0; i < count; ++i) {
      for (int lane = 0; lane < 32; ++lane) {
        const int row = lane / 4, column = lane % 4 * 2;
        EXPECT_EQ(run.out[i * 32 + lane], Element(i, row, column) | Element(i, row, column + 1)
                                                                        << 16);
      }
    }
  }
}

TEST(Matrix, LdmatrixTransposes) {
  const TestRun run = RunClean(
      kWrite +
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 {%r10, %r11, %r12, %r13}, [%r1];\n" +
      Store({"%r10", "%r11", "%r12", "%r13"}));
  for (int i = 0; i < 4; ++i) {
    for (int lane = 0; lane < 32; ++lane) {
      const int row = lane / 4, column = lane % 4 * 2;
      EXPECT_EQ(run.out[i * 32 + lane], Element(i, column, row) | Element(i, column + 1, row)
                                                                      << 16);
    }
  }
}

TEST(Matrix, LdmatrixMayOverwriteItsAddresses) {
  const TestRun run =
      RunClean(kWrite + "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r11}, [%r1];\n" +
               Store({"%r1", "%r11"}));
  EXPECT_EQ(run.out[5], Element(0, 1, 2) | Element(0, 1, 3) << 16);
  EXPECT_EQ(run.out[32 + 5], Element(1, 1, 2) | Element(1, 1, 3) << 16);
}

TEST(Matrix, LdmatrixTakesGenericAddresses) {
  const std::string body = kWrite + "cvt.u64.u32 %rd0, %r1;\ncvta.shared.u64 %rd0, %rd0;\n";
  const std::string load = "ldmatrix.sync.aligned.m8n8.x1.b16 {%r10}, [%rd0+16];\n";
  const TestRun run = RunClean(body + load + Store({"%r10"}));
  EXPECT_EQ(run.out[0], Element(0, 1, 0) | Element(0, 1, 1) << 16);
  EXPECT_THAT(RunBody(body + "mov.u64 %rd0, %out;\n" + load).stop,
              HasSubstr("is not in shared memory"));
}

TEST(Matrix, StmatrixIsTheInverseOfLdmatrix) {
  for (const std::string trans : {"", ".trans"}) {
    const TestRun run = RunClean(kWrite + "ldmatrix.sync.aligned.m8n8.x4" + trans +
                                 ".shared.b16 {%r10, %r11, %r12, %r13}, [%r1];\n"
                                 "stmatrix.sync.aligned.m8n8.x4" +
                                 trans + R"(.shared.b16 [%r1], {%r13, %r11, %r12, %r10};
        bar.warp.sync 0xffffffff;
        ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r1];
      )" + Store({"%r20", "%r21", "%r22", "%r23"}));
    for (int lane = 0; lane < 32; ++lane) {
      const int matrix = lane / 8 == 0 ? 3 : lane / 8 == 3 ? 0 : lane / 8, row = lane % 8;
      for (int i = 0; i < 4; ++i) {
        EXPECT_EQ(run.out[i * 32 + lane],
                  Element(matrix, row, 2 * i) | Element(matrix, row, 2 * i + 1) << 16);
      }
    }
  }
}

TEST(Matrix, MovmatrixTransposes) {
  const TestRun run = RunClean(kWrite + R"(
    ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r1];
    movmatrix.sync.aligned.m8n8.trans.b16 %r11, %r10;
    movmatrix.sync.aligned.m8n8.trans.b16 %r10, %r10;
  )" + Store({"%r10", "%r11"}));
  for (int lane = 0; lane < 32; ++lane) {
    const int row = lane / 4, column = lane % 4 * 2;
    EXPECT_EQ(run.out[lane], Element(0, column, row) | Element(0, column + 1, row) << 16);
    EXPECT_EQ(run.out[32 + lane], run.out[lane]);
  }
}

TEST(Matrix, RowsMustBeAlignedAndInOwnSharedMemory) {
  const std::string load = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r1";
  EXPECT_THAT(RunBody(kWrite + load + "+8];\n").stop, HasSubstr("not a multiple of 16"));
  EXPECT_THAT(RunBody(kWrite + load + "+4096];\n").stop, HasSubstr("lies outside of"));
  EXPECT_THAT(
      RunBody(kWrite + "xor.b32 %r1, %r1, 0x1000000;\n" + load + "];\n", {.ctas = 2, .cluster = 2})
          .stop,
      HasSubstr("of another CTA"));
}

TEST(Matrix, OnlyTheLanesWithAddressesAreChecked) {
  // The upper lanes have no valid address for x2.
  RunClean(kWrite + R"(
    setp.ge.u32 %p0, %tid, 16;
    @%p0 mov.u32 %r1, 1;
    ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10, %r11}, [%r1];
  )");
}

TEST(Matrix, RowsOfAnotherWarpNeedABarrier) {
  const auto run = [&](const std::string& between) {
    // Both warps store their own rows; the first one loads those of the second one.
    return RunBody(R"(
      .shared .align 16 .b8 rows[256];
      shl.b32 %r1, %tid, 4;
      and.b32 %r1, %r1, 112;
      mov.u32 %r0, rows;
      add.u32 %r1, %r1, %r0;
      setp.ge.u32 %p0, %tid, 32;
      @!%p0 bra LOAD;
      stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r1+128], {%tid};
      )" + between + R"(
      bra END;
      LOAD:
      )" + between + R"(
      ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r1+128];
      END:
    )",
                   {.threads = 64});
  };
  EXPECT_THAT(run("bar.sync 0;\n").findings, IsEmpty());
  EXPECT_FALSE(run("").findings.empty());
}

TEST(Matrix, AllLanesMustTakePart) {
  EXPECT_THAT(RunBody(kWrite + R"(
    setp.ne.u32 %p0, %tid, 3;
    @%p0 ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r10}, [%r1];
  )")
                  .stop,
              HasSubstr("not all threads of the warp"));
}

// ---- mma

struct Format {
  const char* name;
  int bits, mantissa_bits, bias;
};
constexpr Format kF16{"f16", 16, 10, 15}, kBF16{"bf16", 16, 7, 127}, kTF32{"tf32", 32, 23, 127},
    kE4M3{"e4m3", 8, 3, 7}, kE5M2{"e5m2", 8, 2, 15};

// The bits of an integer that the format has exactly.
uint32_t Encode(const Format& format, int value) {
  if (value == 0) return 0;
  const auto size = static_cast<uint32_t>(std::abs(value));
  const int exponent = std::bit_width(size) - 1;
  EXPECT_EQ(size << format.mantissa_bits >> exponent << exponent, size << format.mantissa_bits);
  const uint32_t mantissa = (size << format.mantissa_bits >> exponent) ^ 1u << format.mantissa_bits;
  return (value < 0 ? 1u << (format.bits - 1) : 0) |
         static_cast<uint32_t>(exponent + format.bias) << format.mantissa_bits | mantissa;
}

int ValueOfA(int m, int k) { return (m * 5 + k * 3) % 7 - 3; }
int ValueOfB(int k, int n) { return (k * 2 + n * 3) % 5 - 2; }
int ValueOfC(int m, int n) { return m * 8 + n - 60; }

// The fragments as in the figures of the ISA: with groupID = lane / 4 and t = lane % 4, an element
// of A in register 0 or 2 is in row groupID, in register 1 or 3 in row groupID + 8. The registers 0
// and 1 have the first half of the columns if there are four.
void ExpectMultiply(const Format& a, const Format& b, const Format& d, int depth) {
  const int in_word = 32 / a.bits;
  const int words_a = depth / in_word / 2, words_b = words_a / 2, words_d = d.bits == 16 ? 2 : 4;
  TestLaunch launch;
  for (int lane = 0; lane < 32; ++lane) {
    const int group = lane / 4, t = lane % 4;
    for (int i = 0; i < words_a; ++i) {
      uint32_t word = 0;
      for (int e = 0; e < in_word; ++e) {
        const int column = t * in_word + e + (i >= 2 ? depth / 2 : 0);
        word |= Encode(a, ValueOfA(group + (i % 2 ? 8 : 0), column)) << e * a.bits;
      }
      launch.in.push_back(word);
    }
    for (int i = 0; i < words_b; ++i) {
      uint32_t word = 0;
      for (int e = 0; e < in_word; ++e) {
        const int row = t * in_word + e + (i ? depth / 2 : 0);
        word |= Encode(b, ValueOfB(row, group)) << e * b.bits;
      }
      launch.in.push_back(word);
    }
    for (int i = 0; i < 4; ++i) {
      const int value = ValueOfC(group + (i >= 2 ? 8 : 0), t * 2 + i % 2);
      if (d.bits == 16) {
        if (i % 2)
          launch.in.back() |= Encode(kF16, value) << 16;
        else
          launch.in.push_back(Encode(kF16, value));
      } else {
        launch.in.push_back(std::bit_cast<uint32_t>(static_cast<float>(value)));
      }
    }
  }
  const int words = words_a + words_b + words_d;
  std::string body = "mul.lo.u32 %r0, %tid, " + std::to_string(4 * words) +
                     ";\ncvt.u64.u32 %rd0, %r0;\nadd.u64 %rd0, %rd0, %in;\n";
  const auto list = [&](int from, int count) {
    std::string text = "{";
    for (int i = 0; i < count; ++i) {
      text += (i ? ", %r" : "%r") + std::to_string(10 + from + i);
      body += "ld.global.b32 %r" + std::to_string(10 + from + i) + ", [%rd0+" +
              std::to_string(4 * (from + i)) + "];\n";
    }
    return text + "}";
  };
  const std::string of_a = list(0, words_a), of_b = list(words_a, words_b);
  const std::string of_c = list(words_a + words_b, words_d);
  const std::string of_d = words_d == 2 ? "{%r40, %r41}" : "{%r40, %r41, %r42, %r43}";
  body += "mma.sync.aligned.m16n8k" + std::to_string(depth) + ".row.col." + d.name + "." + a.name +
          "." + b.name + "." + d.name + " " + of_d + ", " + of_a + ", " + of_b + ", " + of_c +
          ";\n" + Store({"%r40", "%r41", "%r42", "%r43"});
  const TestRun run = RunClean(body, launch);
  for (int lane = 0; lane < 32; ++lane) {
    for (int i = 0; i < 4; ++i) {
      const int m = lane / 4 + (i >= 2 ? 8 : 0), n = lane % 4 * 2 + i % 2;
      int sum = ValueOfC(m, n);
      for (int k = 0; k < depth; ++k) sum += ValueOfA(m, k) * ValueOfB(k, n);
      if (d.bits == 16) {
        EXPECT_EQ(run.out[i / 2 * 32 + lane] >> i % 2 * 16 & 0xffff, Encode(kF16, sum)) << m << n;
      } else {
        EXPECT_EQ(std::bit_cast<float>(run.out[i * 32 + lane]), static_cast<float>(sum)) << m << n;
      }
    }
  }
}

constexpr Format kF32{"f32", 32, 23, 127};

TEST(Matrix, MmaMultipliesF16) {
  for (const int depth : {8, 16}) {
    ExpectMultiply(kF16, kF16, kF32, depth);
    ExpectMultiply(kF16, kF16, kF16, depth);
  }
}

TEST(Matrix, MmaMultipliesBf16AndTf32) {
  for (const int depth : {8, 16}) ExpectMultiply(kBF16, kBF16, kF32, depth);
  for (const int depth : {4, 8}) ExpectMultiply(kTF32, kTF32, kF32, depth);
}

TEST(Matrix, MmaMultipliesFp8) {
  for (const Format& a : {kE4M3, kE5M2}) {
    for (const Format& b : {kE4M3, kE5M2}) {
      for (const int depth : {16, 32}) {
        ExpectMultiply(a, b, kF32, depth);
        ExpectMultiply(a, b, kF16, depth);
      }
    }
  }
}

TEST(Matrix, MmaTakesConstants) {
  const TestRun run = RunClean(R"(
    mov.b32 %r10, 0x3c003c00;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r10, %r10, %r10},
      {%r10, %r10}, {0f3f800000, 0f3f800000, 0f3f800000, 0f3f800000};
  )" + Store({"%f0", "%f3"}));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(std::bit_cast<float>(run.out[i]), 17.0f);
}

TEST(Matrix, UnknownFormsAreRefused) {
  for (const std::string text : {
           "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%r10, %r11, %r12}, [%r1]",
           "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r10}, [%r1]",
           "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r10, %r11}, [%r1]",
           "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32 {%r10}, [%r1]",
           "ldmatrix.sync.aligned.m8n8.x1.global.b16 {%r10}, [%rd1]",
           "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r1], {%r10}",
           "movmatrix.sync.aligned.m8n8.b16 %r10, %r11",
           "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f16 {%r10, %r11, %r12, %r13}, {%r10, "
           "%r11}, "
           "{%r10, %r11}, {%r10, %r11, %r12, %r13}",
           "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r10, %r11, %r12, %r13}, {%r10, %r11, "
           "%r12, %r13}, {%r10, %r11}, {%r10, %r11, %r12, %r13}",
           "mma.sync.aligned.m16n8k16.row.col.f32.bf16.f16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, "
           "%r12, %r13}, {%r10, %r11}, {%f0, %f1, %f2, %f3}",
           "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f32 {%r20, %r21}, {%r10, %r11, %r12, "
           "%r13}, {%r10, %r11}, {%f0, %f1, %f2, %f3}",
           "mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32 {%f0, %f1, %f2, %f3}, {%r10, %r11, "
           "%r12, %r13}, {%r10, %r11}, {%f0, %f1, %f2, %f3}",
       }) {
    EXPECT_THAT(RunBody(text + ";\n").stop, HasSubstr("unknown instruction")) << text;
  }
}

}  // namespace
}  // namespace ptx
