// Every sharding on every kind of device, bit for bit, with some of its possible plans, drawn by a
// seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

#include "kernels/schedule/verify.h"
#include "tests/conformance/expect_exact.h"
#include "tests/schedule/shardings.h"
#include "tests/support/armed.h"

namespace agmm::test {
namespace {

// Some plans of sharding `number`, with inputs of one of these dtypes.
void ExpectExactPlans(const DeviceKind& kind, int number, int count, std::vector<DType> dtypes) {
  std::mt19937_64 random(TestSeed() + number);
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  Draw draw = {ShardedCases()[number]};
  const int ranks = ParseMesh(draw.sharded.mesh)->size();
  draw.nodes = 1 + below(std::min(ranks, 4));
  draw.dtype = dtypes[below(static_cast<int>(dtypes.size()))];
  draw.shape = {1 + below(70), 1 + below(40), 1 + below(90)};
  std::vector<ShardedPlan> plans = PlansOf(draw, /*thorough=*/true);
  std::shuffle(plans.begin(), plans.end(), random);
  plans.resize(std::min<size_t>(plans.size(), count));
  for (const ShardedPlan& one : plans) {
    SCOPED_TRACE(one.name);
    Cluster::Options options;
    options.threads = 1 + below(2);
    options.heap_bytes = 8 << 20;
    Cluster cluster(kind, one.topology, options);
    const Topology& topology = cluster.topology();
    const absl::StatusOr<Schedule> schedule = Plan(one.problem, topology, one.options);
    // An algorithm that reads in place is not for devices that cannot.
    if (!schedule.ok() && Plan(one.problem, one.topology, one.options).ok()) continue;
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    ASSERT_EQ(Verify(one.problem, topology, *schedule), absl::OkStatus());
    PreparedPlan plan(cluster, one.problem, *schedule);
    ExpectExact(plan, cluster, 2);
    if (testing::Test::HasFailure()) return;
  }
}

class Shardings : public testing::TestWithParam<std::tuple<DeviceKind, int>> {};

TEST_P(Shardings, AreExact) {
  const auto& [kind, number] = GetParam();
  ExpectExactPlans(kind, number, 24, {DType::kF32, DType::kBF16, DType::kF16});
}

// On GPUs with kernels for products, which here compute products of any number of rows.
// tests/run.sh --long runs 24 plans of each sharding.
class KernelShardings : public testing::TestWithParam<std::tuple<DeviceKind, int>> {};

TEST_P(KernelShardings, AreExact) {
  const auto& [kind, number] = GetParam();
  const char* const asked = std::getenv("AGMM_KERNEL_PLANS");
  const Armed few_rows("products.few_rows");
  ExpectExactPlans(kind, number, asked == nullptr ? 2 : std::atoi(asked),
                   {DType::kBF16, DType::kF16});
}

const auto kName = [](const auto& info) {
  return std::get<0>(info.param).name + "_" + std::to_string(std::get<1>(info.param));
};
const auto kNumbers = testing::Range(0, static_cast<int>(ShardedCases().size()));

INSTANTIATE_TEST_SUITE_P(All, Shardings,
                         testing::Combine(testing::ValuesIn(DeviceKinds()), kNumbers), kName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(KernelShardings);
INSTANTIATE_TEST_SUITE_P(All, KernelShardings,
                         testing::Combine(testing::ValuesIn(KindsWithKernels()), kNumbers), kName);

}  // namespace
}  // namespace agmm::test
