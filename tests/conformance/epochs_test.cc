// Epoch after epoch with no barrier: each rank rewrites its A and B and poisons its C as soon as
// its own epoch has ended, while the others may still be working.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <iostream>

#include "absl/status/statusor.h"
#include "kernels/base/failpoint.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/endless.h"
#include "tests/conformance/ucx_network.h"
#include "tests/support/armed.h"
#include "tests/support/patience.h"

namespace agmm::test {
namespace {

// Without credits, 100 epochs mix.
constexpr int kEpochs = 300;

class Epochs : public testing::TestWithParam<std::tuple<DeviceKind, Case>> {};

TEST_P(Epochs, EachUsesOnlyItsOwnInputs) {
  const auto& [kind, c] = GetParam();
  Cluster::Options options;
  options.threads = c.threads;
  Cluster cluster(kind, c.topology(), options);
  PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
  Armed delay("executor.delay");
  const auto wrong = Endless(plan, kEpochs).Go();
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_EQ(*wrong, 0);
  EXPECT_TRUE(cluster.GuardsAreWhole());
}

// No credits: joins at both ends of an epoch keep it apart from its neighbours.
const std::vector<Case> kPeerCases = {
    {"peer", DType::kF32, 3, 1, 1, 23, 13, 29, 1},
    {"peer", DType::kBF16, 4, 1, 2, 23, 13, 29, 2},
    {"peer", DType::kF16, 4, 1, 1, 3, 2, 29, 1},  // ranks without rows, ranks without columns
};
const std::vector<Case> kCreditCases = {
    {"ring", DType::kF32, 3, 1, 2, 23, 13, 29, 1},
    {"ring", DType::kBF16, 4, 2, 1, 23, 13, 29, 1},
    {"direct", DType::kF32, 4, 2, 1, 23, 13, 29, 1},
    {"direct", DType::kBF16, 2, 1, 2, 23, 13, 29, 2},
    {"serial", DType::kF32, 3, 1, 1, 23, 13, 29, 2},
    {"serial", DType::kF16, 2, 2, 1, 23, 13, 29, 1},
};
auto Name = [](const auto& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name();
};
INSTANTIATE_TEST_SUITE_P(All, Epochs,
                         testing::Combine(testing::ValuesIn(DeviceKinds()),
                                          testing::ValuesIn(kCreditCases)),
                         Name);
INSTANTIATE_TEST_SUITE_P(Peer, Epochs,
                         testing::Combine(testing::ValuesIn(DeviceKinds()),
                                          testing::ValuesIn(kPeerCases)),
                         Name);

// Like the above, through the daemon's own transport: real sockets, rendezvous, and every message
// delayed.
class EpochsOverUcx : public testing::TestWithParam<std::tuple<DeviceKind, Case>> {};

void RunOverUcx(const DeviceKind& kind, const Case& c, bool lent) {
  const auto network = std::make_shared<UcxNetwork>(c.nodes);
  Cluster::Options options;
  options.threads = c.threads;
  options.network = network;
  Cluster cluster(kind, c.topology(), options);
  const std::vector<int>& nodes = cluster.topology().node_of_rank;
  for (size_t rank = 0; lent && rank < nodes.size(); ++rank) {
    // The first device of each node.
    if (rank == 0 || nodes[rank] != nodes[rank - 1])
      cluster.device(rank)->Lend(network->progress(nodes[rank]));
  }
  PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
  Armed step_delay("executor.delay"), message_delay("transport.delay");
  const auto wrong = Endless(plan, kEpochs).Go();
  for (size_t rank = 0; rank < nodes.size(); ++rank) cluster.device(rank)->Lend(nullptr);
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_EQ(*wrong, 0);
  EXPECT_GT(network->bytes_sent(), 0);
  EXPECT_EQ(network->first_misfit(), absl::OkStatus());
  EXPECT_TRUE(cluster.GuardsAreWhole());
}

TEST_P(EpochsOverUcx, EachUsesOnlyItsOwnInputs) {
  RunOverUcx(std::get<0>(GetParam()), std::get<1>(GetParam()), /*lent=*/false);
}

// With workers that drive the transport while they wait.
TEST_P(EpochsOverUcx, EachUsesOnlyItsOwnInputsWithLentWorkers) {
  RunOverUcx(std::get<0>(GetParam()), std::get<1>(GetParam()), /*lent=*/true);
}

const std::vector<Case> kUcxCases = {
    {"ring", DType::kF32, 3, 3, 2, 23, 13, 29, 1},
    {"ring", DType::kBF16, 4, 2, 1, 400, 13, 333, 1},  // chunks above the rendezvous threshold
    {"direct", DType::kBF16, 4, 2, 2, 23, 13, 29, 1},
    {"serial", DType::kF32, 2, 2, 1, 23, 13, 29, 2},
};
INSTANTIATE_TEST_SUITE_P(All, EpochsOverUcx,
                         testing::Combine(testing::ValuesIn(DeviceKinds()),
                                          testing::ValuesIn(kUcxCases)),
                         Name);

// Runs `epochs`, which leave out waits, until they mix: until an element of C is wrong, or the
// model of the driver ends the process because accesses are not ordered. Chance decides how the
// epochs interleave, so a round may show nothing.
void ExpectMixed(const DeviceKind& kind, const std::function<absl::StatusOr<int64_t>()>& epochs) {
  if (kind.name == "cuda_model") {
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    const auto fails = [&] {
      const absl::Status status = epochs().status();
      if (!status.ok()) std::cerr << status << "\n";
      return !status.ok();
    };
    EXPECT_DEATH(Eventually(fails), "race");
    return;
  }
  absl::StatusOr<int64_t> wrong = 0;
  EXPECT_TRUE(Eventually([&] {
    wrong = epochs();
    return !wrong.ok() || *wrong > 0;
  })) << "the waits were left out without an effect";
  EXPECT_TRUE(wrong.ok()) << wrong.status();
}

class Credits : public testing::TestWithParam<std::tuple<DeviceKind, Case>> {};

TEST_P(Credits, WithoutThemTheEpochsMixAndTheTestDetectsIt) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "without credits there is a race, which the sanitizer sees, too";
#endif
  const auto& [kind, c] = GetParam();
  Armed delay("executor.delay"), skip("executor.skip_credit");
  ExpectMixed(kind, [&kind = kind, &c = c] {
    Cluster::Options options;
    options.threads = c.threads;
    Cluster cluster(kind, c.topology(), options);
    PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
    return Endless(plan, 100).Go();
  });
}

INSTANTIATE_TEST_SUITE_P(All, Credits,
                         testing::Combine(testing::ValuesIn(DeviceKinds()),
                                          testing::ValuesIn(kCreditCases)),
                         Name);

class Joins : public testing::TestWithParam<DeviceKind> {};

// Leaves out the waits of the joins, or if `entry` those of the multiplies.
Schedule WithoutJoins(Schedule schedule, bool entry) {
  for (std::vector<Step>& steps : schedule.ranks) {
    for (Step& step : steps) {
      if (std::holds_alternative<Multiply>(step.op) == entry) step.waits.clear();
    }
  }
  return schedule;
}

TEST_P(Joins, WithoutThemTheEpochsMixAndTheTestDetectsIt) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "without joins there is a race, which the sanitizer sees, too";
#endif
  const Case& c = kPeerCases[0];
  Armed delay("executor.delay");
  for (bool entry : {false, true}) {
    SCOPED_TRACE(entry ? "no rank waited for the others' epochs" : "no rank waited for readers");
    ExpectMixed(GetParam(), [&] {
      Cluster cluster(GetParam(), c.topology());
      PreparedPlan plan(cluster, c.problem(), WithoutJoins(c.schedule(cluster.topology()), entry));
      return Endless(plan, 100).Go();
    });
  }
}

INSTANTIATE_TEST_SUITE_P(All, Joins, testing::ValuesIn(DeviceKinds()),
                         [](const auto& info) { return info.param.name; });

// Other operands travel, by other routes. Fewer epochs, because these have more steps to delay.
class EpochsOfShardings : public testing::TestWithParam<std::tuple<DeviceKind, Case>> {};

void RunSharding(const DeviceKind& kind, const Case& c, std::shared_ptr<UcxNetwork> network) {
  Cluster::Options options;
  options.threads = c.threads;
  if (network != nullptr) options.network = network;
  Cluster cluster(kind, c.topology(), options);
  PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
  Armed step_delay("executor.delay"), message_delay("transport.delay");
  const auto wrong = Endless(plan, 100).Go();
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_EQ(*wrong, 0);
  EXPECT_TRUE(cluster.GuardsAreWhole());
}

TEST_P(EpochsOfShardings, EachUsesOnlyItsOwnInputs) {
  RunSharding(std::get<0>(GetParam()), std::get<1>(GetParam()), nullptr);
}

TEST_P(EpochsOfShardings, EachUsesOnlyItsOwnInputsOverUcx) {
  const Case& c = std::get<1>(GetParam());
  RunSharding(std::get<0>(GetParam()), c, std::make_shared<UcxNetwork>(c.nodes));
}

constexpr char kAlongK[] = "A[M, K_x] * B[K, N_x] -> C[M, N_x]";
constexpr char kTwoAxes[] = "A[M_xy, K] * B[K, N] -> C[M, N]";
constexpr char kLessSharded[] = "A[M_x, K] * B[K, N] -> C[M, N]";
const std::vector<Case> kShardings = {
    // The first two gather along K: on chip, and with places that are reused. In others B travels
    // and then C, or C alone, or the route has levels.
    {"ring", DType::kBF16, 4, 2, 1, 23, 13, 61, 1, kAlongK},
    {"ring", DType::kF32, 4, 2, 1, 23, 13, 61, 1, kAlongK, "", "", 2},
    {"bidirectional_ring", DType::kF32, 4, 2, 2, 23, 13, 29, 1, kDefaultSpec, "", "", 2},
    {"split_ring", DType::kF32, 3, 2, 1, 23, 13, 29, 2, kDefaultSpec, "", "M=x"},
    {"hierarchical", DType::kBF16, 4, 2, 1, 23, 13, 29, 1},
    {"hierarchical_peer", DType::kF32, 4, 2, 2, 23, 13, 29, 1},
    {"torus", DType::kF32, 4, 2, 1, 23, 13, 29, 1, kTwoAxes, "x=2,y=2"},
    {"direct", DType::kF16, 3, 3, 2, 23, 13, 29, 1, kLessSharded, "", "M=x"},
    {"ring", DType::kBF16, 4, 2, 1, 400, 13, 333, 1, kAlongK, "", "", 2},
};
INSTANTIATE_TEST_SUITE_P(All, EpochsOfShardings,
                         testing::Combine(testing::ValuesIn(DeviceKinds()),
                                          testing::ValuesIn(kShardings)),
                         Name);

}  // namespace
}  // namespace agmm::test
