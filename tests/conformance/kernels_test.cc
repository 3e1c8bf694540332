// Plans whose products kernels compute: with kernels that wait for copies, and with kernels that
// send. Runs where GPUs have such kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/endless.h"
#include "tests/conformance/expect_exact.h"
#include "tests/support/armed.h"
#include "tests/support/patience.h"

namespace agmm::test {
namespace {

using testing::AnyOf;
using testing::Contains;
using testing::Each;
using testing::StartsWith;

// Kernels send if each rank has a GPU of its own, and all of these reach each other.
bool MayKernelsSend(Cluster& cluster, int ranks) {
  std::set<std::string> gpus;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const std::string description = cluster.device(rank)->info().description;
    gpus.insert(description.substr(0, description.find(',')));
    if (!absl::StrContains(description, "reaches GPU")) return false;
  }
  return static_cast<int>(gpus.size()) == ranks;
}

class Kernels : public testing::TestWithParam<std::tuple<DeviceKind, Case>> {
 protected:
  Kernels() : few_rows_("products.few_rows"), cluster_(kind(), c().topology()) {}
  static const DeviceKind& kind() { return std::get<0>(GetParam()); }
  static const Case& c() { return std::get<1>(GetParam()); }

  // Kernels compute all products, and send if the case is carried and its ranks have GPUs of their
  // own. On several nodes, some ranks may send messages alone.
  void ExpectKernels(PreparedPlan& plan) {
    int senders = 0;
    for (Rank rank = 0; rank < plan.rank_count(); ++rank) {
      const std::set<std::string> products = plan.executor(rank)->device_products();
      EXPECT_THAT(products, Each(AnyOf(StartsWith("agmm_"), StartsWith("copied, not carried: "))));
      senders += testing::Matches(Contains(StartsWith("agmm_ring_")))(products);
    }
    if (!c().carried || !MayKernelsSend(cluster_, c().ranks)) {
      EXPECT_EQ(senders, 0);
    } else if (c().nodes == 1) {
      EXPECT_EQ(senders, c().ranks);
    } else {
      EXPECT_GT(senders, 0);
    }
  }

  const Armed few_rows_;
  Cluster cluster_;
};

TEST_P(Kernels, ComputeEveryBitOfC) {
  PreparedPlan plan(cluster_, c().problem(), c().schedule(cluster_.topology()));
  ExpectKernels(plan);
  ExpectExact(plan, cluster_, 2);
}

// 1,000 epochs run in tests/run.sh --long.
TEST_P(Kernels, UseOnlyTheInputsOfTheirEpoch) {
  const char* const asked = std::getenv("AGMM_KERNEL_EPOCHS");
  const int epochs = asked == nullptr ? 4 : std::atoi(asked);
  PreparedPlan plan(cluster_, c().problem(), c().schedule(cluster_.topology()));
  const Armed delay("executor.delay");
  const auto wrong = Endless(plan, epochs).Go();
  ASSERT_TRUE(wrong.ok()) << wrong.status();
  EXPECT_EQ(*wrong, 0);
  EXPECT_TRUE(cluster_.GuardsAreWhole());
}

std::vector<Case> KernelCases() {
  const auto carried = [](Case c) {
    c.carried = true;
    return c;
  };
  Case k_chunks = {"ring", DType::kBF16, 3, 1, 1, 45, 70, 150};
  k_chunks.k_chunks = 2;
  Case mixed = {"ring", DType::kBF16, 2, 1, 1, 150, 30, 70};
  mixed.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]:f32";
  mixed.split = "N=x";
  std::vector<Case> cases = {
      {"serial", DType::kF16, 2, 1, 1, 70, 40, 90},
      {"ring", DType::kBF16, 3, 1, 2, 97, 61, 33},
      {"direct", DType::kF16, 4, 2, 1, 50, 300, 40},
      {"peer", DType::kBF16, 3, 1, 2, 61, 45, 77},
      k_chunks,
      mixed,
      carried({"ring", DType::kBF16, 2, 1, 1, 300, 70, 100}),
      carried({"ring", DType::kF16, 3, 1, 2, 97, 61, 33}),
      carried({"bidirectional_ring", DType::kBF16, 4, 1, 1, 90, 270, 70}),
      carried({"bidirectional_ring", DType::kF16, 5, 1, 2, 61, 40, 65}),
      carried({"direct", DType::kBF16, 3, 1, 1, 80, 50, 60}),
      carried({"split_ring", DType::kBF16, 4, 1, 1, 77, 50, 64}),
      carried({"ring", DType::kBF16, 4, 2, 1, 66, 50, 64}),
      carried({"hierarchical", DType::kF16, 4, 2, 1, 66, 50, 64}),
      carried({"ring", DType::kBF16, 8, 1, 1, 90, 90, 40}),
      carried(mixed),
  };
  return cases;
}

const auto kName = [](const auto& info) {
  return std::get<0>(info.param).name + "_" + std::get<1>(info.param).name();
};
RankState Observe(PreparedPlan& plan, Rank rank, bool times = false) {
  std::promise<RankState> state;
  plan.executor(rank)->Observe(times, [&](const RankState& seen) { state.set_value(seen); });
  return state.get_future().get();
}

// Kernels that wait for a kernel of rank 1, which does not submit it.
class WaitingKernels : public testing::TestWithParam<DeviceKind> {
 protected:
  static Case Ring() {
    Case c = {"ring", DType::kBF16, 3, 1, 1, 97, 61, 33};
    c.carried = true;
    return c;
  }
  WaitingKernels() : cluster_(GetParam(), Ring().topology()) {}

  PreparedPlan Prepare() {
    return PreparedPlan(cluster_, Ring().problem(), Ring().schedule(cluster_.topology()));
  }
  // Starts an epoch on all ranks, and returns once the kernels of ranks 0 and 2 run.
  void Start(PreparedPlan& plan, Reports& reports, Deadline deadline) {
    for (Rank rank = 0; rank < plan.rank_count(); ++rank)
      plan.Run(rank, 1, 1, deadline, reports.At(rank));
    for (const Rank rank : {0, 2}) {
      ASSERT_TRUE(Eventually([&] {
        const std::vector<LaneState> lanes = Observe(plan, rank).lanes;
        return lanes.size() == 1 && lanes[0].missing.empty() && !lanes[0].ready;
      })) << "rank "
          << rank << " has not submitted its kernel";
    }
  }
  // The same memory, streams and GPUs run another plan.
  void ExpectThatTheNextPlanIsExact() {
    PreparedPlan plan = Prepare();
    ExpectExact(plan, cluster_, 1);
  }

  const Armed few_rows_{"products.few_rows"};
  Cluster cluster_;
};

TEST_P(WaitingKernels, EndWhenTheirEpochIsCanceled) {
  {
    PreparedPlan plan = Prepare();
    if (!MayKernelsSend(cluster_, 3)) GTEST_SKIP() << "copies do the sending on these GPUs";
    const Armed hold("executor.hold_kernels_1");
    Reports reports(3);
    Start(plan, reports, Deadline::Infinite());
    for (Rank rank = 0; rank < 3; ++rank)
      plan.executor(rank)->Cancel(absl::CancelledError("the caller cancelled"));
    for (const EpochReport& report : reports.Wait())
      EXPECT_EQ(report.status.code(), absl::StatusCode::kCancelled);
  }
  ExpectThatTheNextPlanIsExact();
}

TEST_P(WaitingKernels, EndAtTheirDeadline) {
  {
    PreparedPlan plan = Prepare();
    if (!MayKernelsSend(cluster_, 3)) GTEST_SKIP() << "copies do the sending on these GPUs";
    const Armed hold("executor.hold_kernels_1");
    Reports reports(3);
    Start(plan, reports, Deadline::After(absl::Seconds(4)));
    for (const EpochReport& report : reports.Wait())
      EXPECT_EQ(report.status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  ExpectThatTheNextPlanIsExact();
}

// A call of a driver with calls=lock keeps all others from submitting while it waits for the
// kernels that run.
TEST_P(WaitingKernels, RunWhileOtherPlansArePrepared) {
  // On a busy machine, the epochs may end before another plan is prepared.
  EXPECT_TRUE(Eventually([&] {
    PreparedPlan plan = Prepare();
    std::future<absl::StatusOr<int64_t>> wrong =
        std::async(std::launch::async, [&] { return Endless(plan, 12).Go(); });
    int beside = 0;  // plans that were prepared during an epoch
    do {
      const PreparedPlan other = Prepare();
      beside += !Observe(plan, 0).lanes.empty();
    } while (wrong.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
    const absl::StatusOr<int64_t> count = wrong.get();
    EXPECT_TRUE(count.ok()) << count.status();
    EXPECT_EQ(count.value_or(-1), 0);
    return beside > 0 || HasFailure();
  }));
}

// Rank 1 submits nothing at all, so the kernels of the others would occupy their GPUs for nothing.
TEST_P(WaitingKernels, AreNotSubmittedBeforeAllRanksCanSubmit) {
  PreparedPlan plan = Prepare();
  if (!MayKernelsSend(cluster_, 3)) GTEST_SKIP() << "copies do the sending on these GPUs";
  Reports reports(3);
  {
    const Armed hold("executor.hold_rank_1");
    for (Rank rank = 0; rank < 3; ++rank)
      plan.Run(rank, 1, 1, Deadline::Infinite(), reports.At(rank));
    for (const Rank rank : {0, 2}) {
      ASSERT_TRUE(Eventually([&] {
        const std::vector<LaneState> lanes = Observe(plan, rank).lanes;
        return lanes.size() == 1 && lanes[0].missing.size() == 1;
      })) << "rank "
          << rank << " does not wait for the kernel of another";
    }
    // Rank 1 has begun once it reports its lane, and has promised to send. Nothing changes then.
    ASSERT_TRUE(Eventually([&] { return !Observe(plan, 1).lanes.empty(); }));
    for (const Rank rank : {0, 2}) {
      const std::vector<LaneState> lanes = Observe(plan, rank).lanes;
      ASSERT_EQ(lanes.size(), 1u);
      EXPECT_EQ(lanes[0].missing.size(), 1u) << "rank " << rank;
    }
  }
  for (Rank rank = 0; rank < 3; ++rank) Observe(plan, rank);  // gives each rank a turn
  for (const EpochReport& report : reports.Wait()) EXPECT_TRUE(report.status.ok()) << report.status;
}

// With times of chunks, which are off by default.
DeviceKind Traced(const DeviceKind& kind) {
  DeviceKind traced = kind;
  traced.create = [kind](Rank rank, int threads) {
    const std::string where = kind.create(rank, threads)->info().description;
    int gpu = 0;
    EXPECT_TRUE(absl::SimpleAtoi(where.substr(4, where.find(',') - 4), &gpu)) << where;
    return *CreateCudaDevice({.gpu = gpu, .shared = true, .trace_chunks = true});
  };
  return traced;
}

class TracedKernels : public testing::TestWithParam<DeviceKind> {
 protected:
  static Case Ring() {
    Case c = {"ring", DType::kBF16, 3, 1, 1, 97, 161, 33};
    c.carried = true;
    return c;
  }
  const Armed few_rows_{"products.few_rows"};
  Cluster cluster_{Traced(GetParam()), Ring().topology()};
  PreparedPlan plan_{cluster_, Ring().problem(), Ring().schedule(cluster_.topology())};
};

TEST_P(TracedKernels, GiveEachStepOfAUnitItsOwnTime) {
  const std::vector<EpochReport> reports = plan_.RunAll(1);
  for (Rank rank = 0; rank < 3; ++rank) {
    ASSERT_TRUE(reports[rank].status.ok()) << reports[rank].status;
    std::set<int64_t> starts;
    const std::vector<Step>& steps = plan_.schedule().ranks[rank];
    for (size_t i = 0; i < steps.size(); ++i) {
      const StepTime& time = reports[rank].steps[i];
      EXPECT_GE(time.start_ns + GetParam().clock_error_ns, reports[rank].start_ns);
      EXPECT_GT(time.end_ns, time.start_ns);
      EXPECT_LE(time.end_ns, reports[rank].end_ns + GetParam().clock_error_ns);
      if (std::holds_alternative<Multiply>(steps[i].op)) starts.insert(time.start_ns);
    }
    EXPECT_EQ(starts.size(), 3u);
  }
}

TEST_P(TracedKernels, NameTheChunkOfAKernelForWhichTheyWait) {
  if (!MayKernelsSend(cluster_, 3)) GTEST_SKIP() << "copies do the sending on these GPUs";
  const Armed hold("executor.hold_kernels_1");
  Reports reports(3);
  for (Rank rank = 0; rank < 3; ++rank)
    plan_.Run(rank, 1, 1, Deadline::Infinite(), reports.At(rank));
  // The kernel has computed its first block, so it runs.
  EXPECT_TRUE(Eventually([&] {
    const RankState state = Observe(plan_, 0, /*times=*/true);
    return !state.steps.empty() && state.steps[0].end_ns > 0 && state.lanes.size() == 1 &&
           state.lanes[0].step == 1 && !state.lanes[0].missing.empty();
  }));
  for (Rank rank = 0; rank < 3; ++rank)
    plan_.executor(rank)->Cancel(absl::CancelledError("the caller cancelled"));
  EXPECT_THAT(
      std::string(reports.Wait()[0].status.message()),
      testing::ContainsRegex("rank 0 lane 0 step 1 waited .* for slot 0:[0-9]+ .rank 1: send"));
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TracedKernels);
INSTANTIATE_TEST_SUITE_P(All, TracedKernels, testing::ValuesIn(KindsWithKernels()),
                         [](const auto& info) { return info.param.name; });

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WaitingKernels);
INSTANTIATE_TEST_SUITE_P(All, WaitingKernels, testing::ValuesIn(KindsWithKernels()),
                         [](const auto& info) { return info.param.name; });

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Kernels);
INSTANTIATE_TEST_SUITE_P(All, Kernels,
                         testing::Combine(testing::ValuesIn(KindsWithKernels()),
                                          testing::ValuesIn(KernelCases())),
                         kName);

}  // namespace
}  // namespace agmm::test
