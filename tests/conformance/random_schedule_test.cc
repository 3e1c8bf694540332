// Legal schedules that no planner makes, bit for bit.
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/schedule/text.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/expect_exact.h"
#include "tests/schedule/random_schedule.h"

namespace agmm::test {
namespace {

class RandomSchedules : public testing::TestWithParam<std::tuple<DeviceKind, int>> {};

TEST_P(RandomSchedules, AreExact) {
  const auto& [kind, number] = GetParam();
  std::mt19937_64 random(TestSeed() + number);
  const DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
  Case c{"random", kDTypes[random() % 3], 1 + static_cast<int>(random() % 5)};
  c.spec = absl::StrCat(kDefaultSpec, ":", Name(kDTypes[random() % 3]));
  c.nodes = 1 + static_cast<int>(random() % c.ranks);
  c.m = 1 + random() % 70;
  c.n = 1 + random() % 40;
  c.k = 1 + random() % 90;
  Cluster::Options options;
  options.threads = 1 + random() % 2;
  options.heap_bytes = 8 << 20;
  Cluster cluster(kind, c.topology(), options);
  const Schedule schedule = RandomSchedule(c.problem(), cluster.topology(), random);
  SCOPED_TRACE(c.name() + "\n" + Print(c.problem(), schedule));
  PreparedPlan plan(cluster, c.problem(), schedule);
  ExpectExact(plan, cluster, 3);
}

INSTANTIATE_TEST_SUITE_P(All, RandomSchedules,
                         testing::Combine(testing::ValuesIn(DeviceKinds()), testing::Range(0, 300)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" +
                                  std::to_string(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace agmm::test
