// Epochs that are queued ahead of each other, with the same operands.
#include <gtest/gtest.h>

#include <atomic>

#include "kernels/base/deadline.h"
#include "kernels/schedule/index.h"
#include "tests/conformance/cases.h"

namespace agmm::test {
namespace {

class Queued : public testing::TestWithParam<std::tuple<DeviceKind, Case>> {};

TEST_P(Queued, EpochsFollowEachOther) {
  const auto& [kind, c] = GetParam();
  constexpr int kEpochs = 3;
  Cluster::Options options;
  options.threads = c.threads;
  Cluster cluster(kind, c.topology(), options);
  PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
  const TestMatrix a = SmallIntegers(ShapeOf(plan.problem()).m, ShapeOf(plan.problem()).k,
                                     TestSeed()),
                   b = SmallIntegers(ShapeOf(plan.problem()).k, ShapeOf(plan.problem()).n,
                                     TestSeed() + 1);
  for (Rank rank = 0; rank < plan.rank_count(); ++rank) {
    plan.Write(rank, kA, a);
    plan.Write(rank, kB, b);
    plan.Poison(rank, kC);
  }
  const TestMatrix product = MatrixProduct(a, b);
  std::atomic<int64_t> wrong{0};
  Reports reports(kEpochs * plan.rank_count());
  for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    for (Rank rank = 0; rank < plan.rank_count(); ++rank) {
      plan.Run(rank, epoch, 1, Deadline::After(absl::Seconds(60)),
               [&, rank, epoch, done = reports.At((epoch - 1) * plan.rank_count() + rank)](
                   const EpochReport& report) {
                 // The operands belong to the rank again, even while other ranks are still working.
                 if (epoch == kEpochs) {
                   wrong += plan.CountWrong(rank, product);
                   for (Operand operand : {kA, kB, kC}) plan.Poison(rank, operand);
                 }
                 done(report);
               });
    }
  }
  for (const EpochReport& report : reports.Wait()) EXPECT_EQ(report.status, absl::OkStatus());
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(cluster.GuardsAreWhole());
}

const std::vector<Case> kCases = {
    {"serial", DType::kBF16, 2, 1, 1, 23, 13, 29, 1},
    {"ring", DType::kF32, 2, 1, 1, 23, 13, 29, 1},
    {"ring", DType::kF32, 4, 1, 2, 23, 13, 29, 1},
    {"bidirectional_ring", DType::kBF16, 4, 1, 1, 23, 13, 29, 1},
    {"direct", DType::kF32, 4, 1, 1, 23, 13, 29, 1},
    {"peer", DType::kF32, 4, 1, 1, 23, 13, 29, 1},
    {"ring", DType::kF16, 4, 2, 1, 23, 13, 29, 1},
    {"hierarchical", DType::kBF16, 4, 2, 1, 23, 13, 29, 1},
};

INSTANTIATE_TEST_SUITE_P(
    All, Queued, testing::Combine(testing::ValuesIn(DeviceKinds()), testing::ValuesIn(kCases)),
    [](const auto& info) {
      return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name();
    });

}  // namespace
}  // namespace agmm::test
