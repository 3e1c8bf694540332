// Products of wgmma. The tests lay out shared memory by the canonical layouts of CuTe
// (cute/atom/mma_traits_sm90_gmma.hpp), element by element, and take the registers from its
// CLayout_64xN and ALayout_64xK.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <functional>

#include "tests/model/ptx/engine/test_kernel.h"

namespace ptx {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

struct Format {
  const char* name;
  int bits, mantissa_bits, bias;
};
constexpr Format kF16{"f16", 16, 10, 15}, kBF16{"bf16", 16, 7, 127}, kTF32{"tf32", 32, 23, 127},
    kE4M3{"e4m3", 8, 3, 7}, kE5M2{"e5m2", 8, 2, 15};

// The bits of a number that the format has exactly.
uint32_t Encode(const Format& format, double value) {
  if (value == 0) return 0;
  int exponent;
  const double fraction = std::frexp(std::abs(value), &exponent);  // in [0.5, 1)
  const double mantissa = (fraction * 2 - 1) * (1 << format.mantissa_bits);
  EXPECT_EQ(mantissa, std::floor(mantissa)) << value;
  return static_cast<uint32_t>(value < 0) << (format.bits - 1) |
         static_cast<uint32_t>(exponent - 1 + format.bias) << format.mantissa_bits |
         static_cast<uint32_t>(mantissa);
}

// One matrix of a test, in shared memory.
struct Side {
  int swizzle = 3;  // the B of Swizzle<B,4,3>
  bool mn_major = false;
  bool far_steps = false;  // LBO and SBO exchange their sizes where both are free
  int first_row = 0;       // of the swizzle's pattern
  int sign = 1;
};

struct Product {
  Format type_a = kF16, type_b = kF16;
  const char* type_d = "f32";
  int n = 16;
  int steps = 1;  // wgmma along K
  Side a, b;
  bool registers_a = false;
  std::string scale_d = "1";
  double start = 0;  // of D
  std::function<double(int m, int k)> value_a = [](int m, int k) {
    return (m * 3 + k * 5) % 7 - 3;
  };
  std::function<double(int n, int k)> value_b = [](int n, int k) {
    return (n * 5 + k * 2) % 5 - 2;
  };
  RunOptions options;
};

// The canonical layout of a matrix: the offsets of its elements, and its descriptor, in bytes.
struct Layout {
  int element_bytes, rows, depth;  // depth: of all steps
  Side side;
  int piece() const { return 16 / element_bytes; }  // T
  int width() const { return 1 << side.swizzle; }   // pieces in a row of the pattern
  int step_depth() const { return 32 / element_bytes; }
  int row_groups() const { return (rows + 7) / 8; }
  int k_groups() const { return side.mn_major ? depth / 8 : depth / piece(); }
  int atoms() const { return (rows / piece() + width() - 1) / width(); }

  int leading() const {
    if (side.mn_major && side.swizzle) {
      return side.far_steps ? 128 * width() : 128 * width() * k_groups();
    }
    if (side.swizzle) return 16;  // not used
    if (side.mn_major) return side.far_steps ? 128 * (rows / piece()) : 128;
    return side.far_steps ? 128 * row_groups() : 128;
  }
  int stride() const {
    if (side.mn_major && side.swizzle) {
      return side.far_steps ? 128 * width() * atoms() : 128 * width();
    }
    if (side.swizzle) return 128 * width();
    if (side.mn_major) return side.far_steps ? 128 : 128 * k_groups();
    return side.far_steps ? 128 : 128 * k_groups();
  }
  // Without the swizzle.
  int Offset(int row, int k) const {
    const int t = piece(), w = width(), bytes = element_bytes;
    if (!side.mn_major) {  // ((8,m),(T,2)) : ((wT,SBO),(1,T)), or LBO for T
      const int along = side.swizzle ? k / t * 16 : k / t * leading();
      return row % 8 * 16 * w + row / 8 * stride() + k % t * bytes + along;
    }
    if (side.swizzle) {  // ((T,w,m),(8,k)) : ((1,T,LBO),(wT,SBO))
      return row % t * bytes + row / t % w * 16 + row / (t * w) * leading() + k % 8 * 16 * w +
             k / 8 * stride();
    }
    // ((T,1,m),(8,k)) : ((1,T,SBO),(1T,LBO))
    return row % t * bytes + row / t * stride() + k % 8 * 16 + k / 8 * leading();
  }
  int Start(int step) const {
    return 16 * width() * side.first_row + Offset(0, step * step_depth());
  }
  int Place(int row, int k) const {
    const int address = 16 * width() * side.first_row + Offset(row, k);
    const int mask = ((1 << side.swizzle) - 1) << 7;
    return address ^ (address & mask) >> 3;
  }
  uint64_t Fields() const {
    constexpr uint64_t kModes[] = {0, 3, 2, 1};
    return uint64_t(leading() / 16) << 16 | uint64_t(stride() / 16) << 32 |
           kModes[side.swizzle] << 62;
  }
};

constexpr int kRegionBytes = 64 * 1024;  // of A; that of B follows

class Harness {
 public:
  explicit Harness(const Product& product)
      : product_(product),
        a_{product.type_a.bits / 8, 64, product.steps * 256 / product.type_a.bits, product.a},
        b_{product.type_b.bits / 8, product.n, product.steps * 256 / product.type_b.bits,
           product.b} {}

  int depth() const { return a_.depth; }
  int step_depth() const { return a_.step_depth(); }
  int accumulators() const { return product_.n / (F32() ? 2 : 4); }
  bool F32() const { return std::string(product_.type_d) == "f32"; }

  TestRun Run() const {
    TestLaunch launch;
    launch.threads = 128;
    launch.out_words = accumulators() * 128;
    launch.options = product_.options;
    launch.in.resize(2 * kRegionBytes / 4);
    Fill(launch.in, 0, a_, product_.type_a, product_.value_a);
    Fill(launch.in, kRegionBytes, b_, product_.type_b, product_.value_b);
    if (product_.registers_a) AppendFragments(launch.in);
    return RunBody(Body(), launch);
  }

  // The element of D that a register of a thread has, from CLayout_64xN:
  // ((4,8,4),(2,2,N/8)) : ((128,1,16),(64,8,512)), with m + 64 n.
  static std::pair<int, int> ElementOfD(int thread, int index) {
    const int at = thread % 4 * 128 + thread / 4 % 8 + thread / 32 * 16 + index % 2 * 64 +
                   index / 2 % 2 * 8 + index / 4 * 512;
    return {at % 64, at / 64};
  }

 private:
  static void Fill(std::vector<uint32_t>& words, int base, const Layout& layout,
                   const Format& format, const std::function<double(int, int)>& value) {
    auto* const bytes = reinterpret_cast<uint8_t*>(words.data()) + base;
    for (int row = 0; row < layout.rows; ++row) {
      for (int k = 0; k < layout.depth; ++k) {
        const uint32_t bits = Encode(format, value(row, k));
        ASSERT_LE(layout.Place(row, k) + layout.element_bytes, kRegionBytes);
        std::memcpy(bytes + layout.Place(row, k), &bits, layout.element_bytes);
      }
    }
  }

  // ALayout_64x8, 64x16 and 64x32: T = ((4,8,4)), V = (E,2,2), E elements in a register.
  void AppendFragments(std::vector<uint32_t>& words) const {
    const int elements = 4 / a_.element_bytes;
    for (int step = 0; step < product_.steps; ++step) {
      for (int index = 0; index < 4; ++index) {
        for (int thread = 0; thread < 128; ++thread) {
          uint32_t word = 0;
          for (int e = 0; e < elements; ++e) {
            const int at = thread % 4 * 64 * elements + thread / 4 % 8 + thread / 32 * 16 + e * 64 +
                           index % 2 * 8 + index / 2 * 256 * elements;
            const uint32_t bits =
                Encode(product_.type_a, product_.value_a(at % 64, at / 64 + step * step_depth()));
            word |= bits << e * product_.type_a.bits;
          }
          words.push_back(word);
        }
      }
    }
  }

  std::string Body() const {
    std::string body = R"(
      .shared .align 1024 .b8 smem[)" +
                       std::to_string(2 * kRegionBytes) + R"(];
      .reg .b32 %acc<128>;
      .reg .b32 %a<16>;
      mov.u32 %r0, smem;
      mov.u32 %r1, %tid;
      COPY: setp.ge.u32 %p0, %r1, )" +
                       std::to_string(2 * kRegionBytes / 16) + R"(;
      @%p0 bra COPIED;
      mul.wide.u32 %rd1, %r1, 16;
      add.u64 %rd1, %rd1, %in;
      ld.global.v4.u32 {%r2, %r3, %r4, %r5}, [%rd1];
      shl.b32 %r6, %r1, 4;
      add.u32 %r6, %r6, %r0;
      st.shared.v4.u32 [%r6], {%r2, %r3, %r4, %r5};
      add.u32 %r1, %r1, 128;
      bra COPY;
      COPIED:
      fence.proxy.async;
      bar.sync 0;
      mul.wide.u32 %rd6, %tid, 4;
      add.u64 %rd7, %rd6, %out;
      add.u64 %rd6, %rd6, %in;
      and.b32 %r1, %r0, 0x3ffff;
      shr.u32 %r1, %r1, 4;
      cvt.u64.u32 %rd4, %r1;
    )";
    for (int i = 0; i < accumulators(); ++i) {
      const auto bits = F32() ? std::bit_cast<uint32_t>(static_cast<float>(product_.start))
                              : Encode(kF16, product_.start) * 0x10001;
      body += "mov.b32 %acc" + std::to_string(i) + ", " + std::to_string(bits) + ";\n";
    }
    if (product_.registers_a) {
      for (int i = 0; i < 4 * product_.steps; ++i) {
        body += "ld.global.b32 %a" + std::to_string(i) + ", [%rd6+" +
                std::to_string(2 * kRegionBytes + i * 512) + "];\n";
      }
    }
    body += "setp.eq.u32 %p1, %tid, 0xffffffff;\nwgmma.fence.sync.aligned;\n";
    for (int step = 0; step < product_.steps; ++step) body += Mma(step);
    body += "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n";
    for (int i = 0; i < accumulators(); ++i) {
      body +=
          "st.global.b32 [%rd7+" + std::to_string(i * 512) + "], %acc" + std::to_string(i) + ";\n";
    }
    return body;
  }

  std::string Mma(int step) const {
    const auto descriptor = [&](const char* name, const Layout& layout, int base) {
      return "add.u64 " + std::string(name) + ", %rd4, " +
             std::to_string(
                 static_cast<int64_t>(layout.Fields() + (base + layout.Start(step)) / 16)) +
             ";\n";
    };
    std::string text = descriptor("%rd2", a_, 0) + descriptor("%rd3", b_, kRegionBytes);
    text += "wgmma.mma_async.sync.aligned.m64n" + std::to_string(product_.n) + "k" +
            std::to_string(step_depth()) + "." + product_.type_d + "." + product_.type_a.name +
            "." + product_.type_b.name + " {";
    for (int i = 0; i < accumulators(); ++i) {
      text += (i ? ", %acc" : "%acc") + std::to_string(i);
    }
    if (product_.registers_a) {
      text += "}, {";
      for (int i = 0; i < 4; ++i) text += (i ? ", %a" : "%a") + std::to_string(step * 4 + i);
      text += "}";
    } else {
      text += "}, %rd2";
    }
    text += ", %rd3, " + (step ? std::string("1") : product_.scale_d) + ", " +
            std::to_string(product_.a.sign) + ", " + std::to_string(product_.b.sign);
    if (product_.type_a.bits == 16) {
      if (!product_.registers_a) text += product_.a.mn_major ? ", 1" : ", 0";
      text += product_.b.mn_major ? ", 1" : ", 0";
    }
    return text + ";\n";
  }

  const Product& product_;
  const Layout a_, b_;
};

// Runs the product, and compares D with a sum in integers.
void ExpectProduct(const Product& product) {
  const Harness harness(product);
  const TestRun run = harness.Run();
  ASSERT_EQ(run.stop, "");
  EXPECT_THAT(run.findings, IsEmpty());
  const bool scaled = product.scale_d == "1" || product.scale_d == "!%p1";
  int wrong = 0;
  for (int thread = 0; thread < 128; ++thread) {
    for (int i = 0; i < product.n / 2; ++i) {
      const auto [m, n] = Harness::ElementOfD(thread, i);
      double sum = 0;
      for (int k = 0; k < harness.depth(); ++k) {
        sum += product.value_a(m, k) * product.value_b(n, k);
      }
      sum = sum * product.a.sign * product.b.sign + (scaled ? product.start : 0);
      const uint32_t word = run.out[(harness.F32() ? i : i / 2) * 128 + thread];
      const uint32_t expected =
          harness.F32() ? std::bit_cast<uint32_t>(static_cast<float>(sum)) : Encode(kF16, sum);
      const uint32_t got = harness.F32() ? word : word >> i % 2 * 16 & 0xffff;
      if (got != expected && ++wrong < 5) {
        ADD_FAILURE() << "D[" << m << "][" << n << "] has the bits " << std::hex << got << ", not "
                      << expected << std::dec << " of " << sum;
      }
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST(Wgmma, ReadsEverySwizzleAndMajorOfA) {
  for (int swizzle = 0; swizzle < 4; ++swizzle) {
    for (const bool mn_major : {false, true}) {
      for (const bool far_steps : {false, true}) {
        SCOPED_TRACE(testing::Message() << swizzle << mn_major << far_steps);
        const int steps = mn_major || swizzle == 0 ? 3 : 1 << (swizzle - 1);
        ExpectProduct({.steps = steps, .a = {swizzle, mn_major, far_steps}, .b = {.swizzle = 0}});
      }
    }
  }
}

TEST(Wgmma, ReadsEverySwizzleAndMajorOfB) {
  for (int swizzle = 0; swizzle < 4; ++swizzle) {
    for (const bool mn_major : {false, true}) {
      for (const bool far_steps : {false, true}) {
        SCOPED_TRACE(testing::Message() << swizzle << mn_major << far_steps);
        const int steps = mn_major || swizzle == 0 ? 3 : 1 << (swizzle - 1);
        ExpectProduct({.type_a = kBF16,
                       .type_b = kBF16,
                       .n = 128,
                       .steps = steps,
                       .a = {.swizzle = 0},
                       .b = {swizzle, mn_major, far_steps}});
      }
    }
  }
}

TEST(Wgmma, ReadsEverySwizzleOfEightAndThirtyTwoBits) {
  for (int swizzle = 0; swizzle < 4; ++swizzle) {
    for (const Format& format : {kTF32, kE4M3}) {
      SCOPED_TRACE(testing::Message() << swizzle << format.name);
      ExpectProduct({.type_a = format,
                     .type_b = format,
                     .n = 24,
                     .steps = swizzle == 0 ? 2 : 1 << (swizzle - 1),
                     .a = {.swizzle = swizzle, .far_steps = true},
                     .b = {.swizzle = swizzle}});
    }
  }
}

TEST(Wgmma, AStartInsideThePatternKeepsTheSwizzleOfTheAddress) {
  for (int swizzle = 1; swizzle < 4; ++swizzle) {
    SCOPED_TRACE(swizzle);
    ExpectProduct(
        {.a = {.swizzle = swizzle, .first_row = 4}, .b = {.swizzle = swizzle, .first_row = 2}});
  }
}

TEST(Wgmma, HasEveryWidth) {
  for (int n = 8; n <= 256; n += 8) {
    SCOPED_TRACE(n);
    ExpectProduct({.n = n, .start = 5});
  }
}

TEST(Wgmma, HasEveryPairOfTypes) {
  for (const bool registers_a : {false, true}) {
    for (const Format& a : {kE4M3, kE5M2}) {
      for (const Format& b : {kE4M3, kE5M2}) {
        for (const char* d : {"f32", "f16"}) {
          SCOPED_TRACE(testing::Message() << a.name << b.name << d << registers_a);
          ExpectProduct(
              {.type_a = a, .type_b = b, .type_d = d, .n = 40, .registers_a = registers_a});
        }
      }
    }
    for (const Format& type : {kF16, kBF16, kTF32}) {
      SCOPED_TRACE(testing::Message() << type.name << registers_a);
      ExpectProduct({.type_a = type, .type_b = type, .steps = 2, .registers_a = registers_a});
    }
    ExpectProduct({.type_d = "f16", .n = 64, .steps = 4, .registers_a = registers_a});
  }
}

TEST(Wgmma, NegatesEitherMatrix) {
  for (const int a : {1, -1}) {
    for (const int b : {1, -1}) {
      ExpectProduct({.a = {.sign = a}, .b = {.sign = b}, .start = 7});
      ExpectProduct({.type_a = kE5M2,
                     .type_b = kE4M3,
                     .a = {.sign = a},
                     .b = {.sign = b},
                     .registers_a = true,
                     .start = 7});
    }
  }
}

TEST(Wgmma, ScaleDSaysWhetherDIsAdded) {
  for (const char* scale : {"0", "1", "%p1", "!%p1"}) {
    SCOPED_TRACE(scale);
    ExpectProduct({.scale_d = scale, .start = 9});
    ExpectProduct({.type_d = "f16", .scale_d = scale, .start = 9});
  }
}

TEST(Wgmma, GivesTheSameInEveryOrder) {
  for (const Mode mode : {Mode::kRandom, Mode::kLate, Mode::kEager}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      ExpectProduct({.n = 32, .steps = 4, .options = {.seed = seed, .mode = mode, .quantum = 3}});
    }
  }
}

TEST(Wgmma, AnF16AccumulatorIsRoundedOncePerInstruction) {
  // 2048 + 1 is a tie in f16, so that sixteen roundings would give 2048 again.
  const Product product{.type_d = "f16",
                        .n = 8,
                        .start = 2048,
                        .value_a = [](int, int) { return 1; },
                        .value_b = [](int, int) { return 1; }};
  ExpectProduct(product);
  const TestRun run = Harness(product).Run();
  EXPECT_EQ(run.out[0], Encode(kF16, 2064) * 0x10001);
}

TEST(Wgmma, AnF16AccumulatorOverflowsToInfinity) {
  const Product product{.type_d = "f16",
                        .n = 8,
                        .value_a = [](int, int) { return 128; },
                        .value_b = [](int, int) { return -128; }};
  EXPECT_EQ(Harness(product).Run().out[0], 0xfc00fc00u);
}

TEST(Wgmma, Tf32DropsTheLowBits) {
  const Product product{.type_a = kTF32,
                        .type_b = kTF32,
                        .n = 8,
                        .value_a = [](int, int k) { return k ? 0 : 1 + 0x1p-10 + 0x1p-11; },
                        .value_b = [](int, int) { return 1; }};
  EXPECT_EQ(Harness(product).Run().out[0], std::bit_cast<uint32_t>(1 + 0x1p-10f));
}

}  // namespace
}  // namespace ptx
