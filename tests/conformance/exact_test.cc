// C of small whole numbers, bit for bit, for every case on every kind of device.
#include <gtest/gtest.h>

#include "tests/conformance/cases.h"
#include "tests/conformance/expect_exact.h"

namespace agmm::test {
namespace {

class Exact : public testing::TestWithParam<std::tuple<DeviceKind, Case>> {};

TEST_P(Exact, EveryBitOfCIsRight) {
  const auto& [kind, c] = GetParam();
  Cluster::Options options;
  options.threads = c.threads;
  Cluster cluster(kind, c.topology(), options);
  PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
  ExpectExact(plan, cluster, 2);
}

INSTANTIATE_TEST_SUITE_P(All, Exact,
                         testing::Combine(testing::ValuesIn(DeviceKindsAndHidden()),
                                          testing::ValuesIn(Cases())),
                         [](const auto& info) {
                           return std::get<0>(info.param).name + "_" +
                                  std::get<1>(info.param).name();
                         });

}  // namespace
}  // namespace agmm::test
