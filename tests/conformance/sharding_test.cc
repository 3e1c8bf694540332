// Every sharding on every kind of device, bit for bit, with some of its possible plans, drawn by a
// seed.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/schedule/verify.h"
#include "tests/conformance/expect_exact.h"
#include "tests/schedule/shardings.h"

namespace agmm::test {
namespace {

constexpr int kPlans = 24;

class Shardings : public testing::TestWithParam<std::tuple<DeviceKind, int>> {};

TEST_P(Shardings, AreExact) {
  const auto& [kind, number] = GetParam();
  std::mt19937_64 random(TestSeed() + number);
  const auto below = [&](int bound) { return static_cast<int>(random() % bound); };
  const DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  Draw draw = {ShardedCases()[number]};
  const int ranks = ParseMesh(draw.sharded.mesh)->size();
  draw.nodes = 1 + below(std::min(ranks, 4));
  draw.dtype = kDTypes[below(3)];
  draw.shape = {1 + below(70), 1 + below(40), 1 + below(90)};
  std::vector<ShardedPlan> plans = PlansOf(draw, /*thorough=*/true);
  std::shuffle(plans.begin(), plans.end(), random);
  plans.resize(std::min<size_t>(plans.size(), kPlans));
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
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Shardings,
                         testing::Combine(testing::ValuesIn(DeviceKinds()),
                                          testing::Range(0,
                                                         static_cast<int>(ShardedCases().size()))),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace agmm::test
