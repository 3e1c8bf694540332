// The rule for denormals (docs/concepts.md): in bf16 they count as zero with every kernel, like
// with the bf16 instructions of processors; in f32 they are kept; f16 has none, because its
// products are computed in f32.
#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/cpu/zero_denormals.h"
#include "kernels/schedule/text.h"
#include "tests/conformance/cases.h"
#include "tests/schedule/random_schedule.h"

namespace agmm::test {
namespace {

constexpr float kLeastNormal = 0x1p-126f;  // of f32 and of bf16

struct Expected {
  const char* what;
  float a, b, bf16, f32;
};
// C for rows of A that hold `a` once, and columns of B that hold `b`.
constexpr Expected kProducts[] = {
    {"a denormal of A", 0x1p-130f, 0x1p20f, 0, 0x1p-110f},
    {"a denormal of B", -0x1p20f, 0x1p-127f, 0, -0x1p-107f},
    {"the largest denormal of bf16", 0x1.FCp-127f, 0x1p1f, 0, 0x1.FCp-126f},
    {"a product that is denormal", 0x1p-70f, 0x1p-60f, 0, 0x1p-130f},
    {"the least normal number", kLeastNormal, 1, kLeastNormal, kLeastNormal},
    {"the least normal product", 0x1p-63f, -0x1p-63f, -kLeastNormal, -kLeastNormal},
};

// Returns the result of a job on two ranks for one such product, with a batch of `m` rows and a
// result of dtype `result`.
float ProductOf(const Expected& product, DType dtype, int64_t m, DType result) {
  constexpr int64_t kN = 32, kK = 70;
  Case c{"ring", dtype, 2, 2, 1, m, kN, kK};
  c.spec = absl::StrCat(kDefaultSpec, ":", Name(result));
  c.split = "N=x";
  TestMatrix a{m, kK, std::vector<float>(m * kK)},
      b{kK, kN, std::vector<float>(kK * kN, product.b)};
  for (int64_t row = 0; row < m; ++row) a.values[row * kK + 3] = product.a;
  Cluster cluster(CpuKind(), c.topology());
  PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
  plan.Fill(a, b);
  for (const EpochReport& report : plan.RunAll(1)) EXPECT_TRUE(report.status.ok());
  TestMatrix found{m, kN, std::vector<float>(m * kN)};
  for (Rank rank = 0; rank < c.ranks; ++rank) plan.ReadResult(rank, &found);
  for (const float value : found.values) EXPECT_EQ(value, found.values[0]);
  return found.values[0];
}

TEST(Denormals, AreZeroInBF16AndKeptInOtherDTypes) {
  for (const Expected& product : kProducts) {
    SCOPED_TRACE(product.what);
    for (int64_t m : {1, 40}) {
      for (const DType result : {DType::kBF16, DType::kF32})
        EXPECT_EQ(ProductOf(product, DType::kBF16, m, result), product.bf16)
            << "m " << m << " " << Name(result);
      EXPECT_EQ(ProductOf(product, DType::kF32, m, DType::kF32), product.f32) << "m " << m;
    }
  }
  EXPECT_EQ(
      ProductOf({"the least denormal of f16", 0x1p-24f, 1, 0, 0}, DType::kF16, 40, DType::kF16),
      0x1p-24f);
}

TEST(Denormals, CountAsZeroWithEveryKernelForBF16) {
  constexpr int64_t kM = 3, kN = 16, kK = 40;
  const ZeroDenormals rule(true);
  for (GemmKernel kernel : {GemmKernel::kF32, GemmKernel::kBF16, GemmKernel::kTiles}) {
    if (!Has(kernel)) continue;
    const DType input = InputOf(kernel);
    std::vector<std::byte> a(kM * kK * SizeOf(input)), b(kK * kN * SizeOf(input));
    ConvertFromF32(input, std::vector<float>(kM * kK, 0x1p-130f).data(), a.data(), kM * kK);
    ConvertFromF32(input, std::vector<float>(kK * kN, 0x1p20f).data(), b.data(), kK * kN);
    GemmLibrary library(1);
    GemmWorker worker(0);
    const auto matmul = library.Get({kM, kN, kK, kernel, DType::kF32, false}).value();
    const PackedB packed = matmul->Pack({b.data(), kN * SizeOf(input), input}, worker).value();
    std::vector<float> c(kM * kN, 1);
    auto* const to = reinterpret_cast<std::byte*>(c.data());
    ASSERT_TRUE(
        matmul
            ->Run({a.data(), kK * SizeOf(input), input}, packed, {to, kN * 4, DType::kF32}, worker)
            .ok());
    EXPECT_EQ(c, std::vector<float>(kM * kN, 0)) << "kernel " << static_cast<int>(kernel);
  }
}

TEST(Denormals, CountAsZeroInSumsWhileTheRuleHolds) {
  float sum = 0x1p-126f;
  const float less = -0x1.8p-126f, tiny = 0x1p-130f;
  const auto add = [&](const float& value) {
    const Matrix into{reinterpret_cast<std::byte*>(&sum), 4, DType::kF32};
    const ConstMatrix addends[] = {into,
                                   {reinterpret_cast<const std::byte*>(&value), 4, DType::kF32}};
    SumRows(addends, into, 1, 1);
  };
  {
    const ZeroDenormals rule(true);
    add(less);
    EXPECT_EQ(sum, 0);
    add(tiny);
    EXPECT_EQ(sum, 0);
  }
  add(tiny);
  EXPECT_EQ(sum, tiny);
  const ZeroDenormals rule(false);
  add(tiny);
  EXPECT_EQ(sum, 2 * tiny);
}

bool Reduces(const Schedule& schedule) {
  for (const std::vector<Step>& rank : schedule.ranks) {
    for (const Step& step : rank)
      if (std::holds_alternative<Reduce>(step.op)) return true;
  }
  return false;
}

TEST(Denormals, AreZeroInReductionsOfBF16AndKeptInThoseOfF32) {
  constexpr int64_t kM = 5, kN = 7, kK = 2;  // a reduction adds one term to the other
  const TestMatrix b{kK, kN, std::vector<float>(kK * kN, 0x1p-63f)};
  TestMatrix a{kM, kK, {}};
  for (int64_t row = 0; row < kM; ++row) a.values.insert(a.values.end(), {0x1p-63f, -0x1.8p-63f});
  std::mt19937_64 random(TestSeed());
  for (const auto& [dtype, sum] : {std::pair(DType::kBF16, 0.f), {DType::kF32, -0x1p-127f}}) {
    const Case c{"random", dtype, 2, 1, 1, kM, kN, kK};
    int reductions = 0;
    for (int tries = 0; reductions < 3; ++tries) {
      ASSERT_LT(tries, 1000) << "no random schedule reduces";
      const Schedule schedule = RandomSchedule(c.problem(), c.topology(), random);
      if (!Reduces(schedule)) continue;
      ++reductions;
      SCOPED_TRACE(Print(c.problem(), schedule));
      Cluster cluster(CpuKind(), c.topology());
      PreparedPlan plan(cluster, c.problem(), schedule);
      plan.Fill(a, b);
      for (const EpochReport& report : plan.RunAll(1)) EXPECT_TRUE(report.status.ok());
      TestMatrix found{kM, kN, std::vector<float>(kM * kN)};
      for (Rank rank = 0; rank < c.ranks; ++rank) plan.ReadResult(rank, &found);
      EXPECT_EQ(found.values, std::vector<float>(kM * kN, sum)) << Name(dtype);
    }
  }
}

}  // namespace
}  // namespace agmm::test
