// Promises of a device beside the product: order, time stamps, and a warm path that prepares
// nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "kernels/base/deadline.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/units.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/large_pages.h"

namespace agmm::test {
namespace {

class DeviceTest : public testing::TestWithParam<DeviceKind> {
 protected:
  static void Fill(PreparedPlan& plan, const TestMatrix& a, const TestMatrix& b) {
    for (Rank rank = 0; rank < plan.rank_count(); ++rank) {
      plan.Write(rank, kA, a);
      plan.Write(rank, kB, b);
      plan.Poison(rank, kC);
    }
  }
  // Rank 0 of two on one node.
  static absl::Status Prepare(Cluster& cluster, const Problem& problem, const Schedule& schedule) {
    const auto executor = cluster.device(0)->CreateExecutor(),
               peer = cluster.device(1)->CreateExecutor();
    Peers peers;
    peers.executors = {executor.get(), peer.get()};
    peers.heaps = {cluster.heap(0), cluster.heap(1)};
    peers.nodes = {0, 0};
    return executor->Prepare(problem, std::make_shared<const Schedule>(schedule), peers);
  }
};

// Each step starts behind its lane and behind the producers of its waits.
void ExpectOrdered(const Schedule& schedule, const std::vector<EpochReport>& reports) {
  struct Producer {
    int64_t ns = 0;  // the signal is not raised before
    std::string name;
  };
  std::map<Slot, Producer> producers;
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      const Step& step = schedule.ranks[rank][i];
      const StepTime& time = reports[rank].steps[i];
      const auto* transfer = std::get_if<Transfer>(&step.op);
      // The end of a transfer is that of its last `to`, and a sender hears late of what has
      // arrived.
      const bool exact =
          transfer == nullptr || transfer->to.empty() ||
          (transfer->to.size() == 1 && transfer->to[0].rank == static_cast<Rank>(rank));
      for (const Slot& slot : step.signals) {
        producers[slot] = {exact ? time.end_ns : time.start_ns,
                           absl::StrCat("rank ", rank, " step ", i)};
      }
    }
  }
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::map<int, int64_t> lane_end;
    for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
      SCOPED_TRACE(absl::StrCat("rank ", rank, " step ", i));
      const Step& step = schedule.ranks[rank][i];
      const StepTime& time = reports[rank].steps[i];
      EXPECT_GE(time.start_ns, reports[rank].start_ns);
      EXPECT_GE(time.end_ns, time.start_ns);
      EXPECT_LE(time.end_ns, reports[rank].end_ns);
      EXPECT_GE(time.start_ns, lane_end[step.lane]);
      lane_end[step.lane] = time.end_ns;
      for (const Wait& wait : step.waits) {
        if (wait.lag != 0) continue;
        EXPECT_GE(time.start_ns, producers.at(wait.slot).ns) << producers.at(wait.slot).name;
      }
    }
  }
}

TEST_P(DeviceTest, ResultsLieInLargePages) {
  if (!HasLargePages()) GTEST_SKIP() << "this machine has no large pages for files";
  const Case c{"serial", DType::kF32, 1, 1, 1, 2048, 1024, 16, 1};
  Cluster cluster(GetParam(), c.topology(), Cluster::Options());
  PreparedPlan plan(cluster, c.problem(), c.schedule());
  Fill(plan, SmallIntegers(c.m, c.k, TestSeed()), SmallIntegers(c.k, c.n, TestSeed() + 1));
  EXPECT_EQ(LargePages(cluster.heap(0)->host().data()), 0);
  ASSERT_EQ(plan.RunAll(1)[0].status, absl::OkStatus());
  // C has 8 MiB; other tensors may share its first and last page.
  EXPECT_GE(LargePages(cluster.heap(0)->host().data()), 3);
}

TEST_P(DeviceTest, StepsStartBehindTheirLaneAndTheirWaits) {
  for (const char* algorithm : {"serial", "ring", "direct", "peer"}) {
    SCOPED_TRACE(algorithm);
    const Case c{algorithm,
                 DType::kF32,
                 4,
                 algorithm == std::string("peer") ? 1 : 2,
                 algorithm == std::string("serial") ? 1 : 3,
                 200,
                 40,
                 50,
                 2};
    Cluster::Options options;
    options.threads = c.threads;
    Cluster cluster(GetParam(), c.topology(), options);
    PreparedPlan plan(cluster, c.problem(), c.schedule());
    Fill(plan, SmallIntegers(c.m, c.k, TestSeed()), SmallIntegers(c.k, c.n, TestSeed() + 1));
    for (uint64_t epoch = 1; epoch <= 20; ++epoch) {
      const std::vector<EpochReport> reports = plan.RunAll(epoch);
      for (const EpochReport& report : reports) ASSERT_EQ(report.status, absl::OkStatus());
      ExpectOrdered(plan.schedule(), reports);
    }
  }
}

TEST_P(DeviceTest, TwoPlansInterleaveOnTheSameDevices) {
  const Case ring{"ring", DType::kBF16, 3, 2, 2, 50, 20, 30, 1},
      direct{"direct", DType::kF32, 3, 2, 1, 70, 31, 64, 1};
  Cluster cluster(GetParam(), ring.topology());
  PreparedPlan first(cluster, ring.problem(), ring.schedule());
  PreparedPlan second(cluster, direct.problem(), direct.schedule());
  constexpr int kEpochs = 50;
  std::map<PreparedPlan*, TestMatrix> c;
  for (PreparedPlan* plan : {&first, &second}) {
    const TestMatrix a = SmallIntegers(plan->problem().m(), plan->problem().k(), TestSeed());
    const TestMatrix b = SmallIntegers(plan->problem().k(), plan->problem().n(), TestSeed() + 1);
    Fill(*plan, a, b);
    c[plan] = Product(a, b);
  }
  Reports reports(kEpochs * 2 * 3);
  int next = 0;
  // All queued ahead, in one order on every rank; C is compared and poisoned after each.
  std::atomic<int64_t> wrong{0};
  for (Rank rank = 0; rank < 3; ++rank) {
    for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
      for (PreparedPlan* plan : {&first, &second}) {
        plan->Run(rank, epoch, 1, Deadline::After(absl::Seconds(60)),
                  [&, plan, rank, done = reports.At(next++)](const EpochReport& report) {
                    wrong += plan->CountWrong(rank, c[plan]);
                    plan->Poison(rank, kC);
                    done(report);
                  });
      }
    }
  }
  for (const EpochReport& report : reports.Wait()) EXPECT_EQ(report.status, absl::OkStatus());
  EXPECT_EQ(wrong, 0);
}

TEST_P(DeviceTest, WarmEpochsPackAndAllocateNothing) {
  const Case c{"ring", DType::kBF16, 2, 1, 2, 300, 64, 100, 2};
  Cluster::Options options;
  options.threads = c.threads;
  Cluster cluster(GetParam(), c.topology(), options);
  PreparedPlan plan(cluster, c.problem(), c.schedule());
  const TestMatrix a = SmallIntegers(c.m, c.k, TestSeed());
  Fill(plan, a, SmallIntegers(c.k, c.n, TestSeed() + 1));
  uint64_t epoch = 1;
  plan.RunAll(epoch++, 1);
  const DeviceCounters before = cluster.device(0)->counters();
  EXPECT_EQ(before.packs, 1);
  EXPECT_GT(before.packed_bytes, 0);
  EXPECT_GT(before.allocations, before.packs);
  for (int i = 0; i < 100; ++i) plan.RunAll(epoch++, 1);
  DeviceCounters after = cluster.device(0)->counters();
  EXPECT_EQ(after.packs, before.packs);
  EXPECT_EQ(after.packed_bytes, before.packed_bytes);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.epochs, before.epochs + 100);
  // Other contents under another version; the old copy goes.
  const TestMatrix b = SmallIntegers(c.k, c.n, TestSeed() + 2);
  Fill(plan, a, b);
  plan.RunAll(epoch++, 2);
  after = cluster.device(0)->counters();
  EXPECT_EQ(after.packs, before.packs + 1);
  EXPECT_EQ(after.allocations, before.allocations + 1);
  EXPECT_EQ(after.packed_bytes, before.packed_bytes);
  for (Rank rank = 0; rank < 2; ++rank) EXPECT_EQ(plan.CountWrong(rank, Product(a, b)), 0);
  // Forgotten contents take their packed copy along.
  cluster.device(0)->ForgetContents(cluster.heap(0), 0, cluster.heap(0)->size_bytes());
  EXPECT_EQ(cluster.device(0)->counters().packed_bytes, 0);
  plan.RunAll(epoch++, 2);
  EXPECT_EQ(cluster.device(0)->counters().packs, after.packs + 1);
  EXPECT_EQ(cluster.device(0)->counters().packed_bytes, before.packed_bytes);
}

TEST_P(DeviceTest, DescribesItself) {
  const auto device = GetParam().create(2);
  EXPECT_EQ(device->info().kind, GetParam().name);
  EXPECT_THAT(device->info().description, testing::HasSubstr("2 threads"));
  EXPECT_EQ(device->info().threads, 2);
}

TEST_P(DeviceTest, AHeapThatDoesNotFitIsRefusedWithBothFigures) {
  const auto device = GetParam().create(1);
  const absl::Status status = device->CreateHeap(int64_t{1} << 50).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::ContainsRegex("^a heap of 1024 TiB was requested and .* are available"));
  EXPECT_EQ(device->CreateHeap(0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceTest, ASchedulesMistakesAreRefusedByName) {
  const Case c{"ring", DType::kF32, 2, 1, 1, 40, 12, 20, 1};
  Cluster cluster(GetParam(), c.topology());
  const auto prepare = [&](const Schedule& schedule) {
    return Prepare(cluster, c.problem(), schedule);
  };
  EXPECT_EQ(prepare(c.schedule()), absl::OkStatus());
  Schedule outside = c.schedule();
  for (Step& step : outside.ranks[0])
    if (auto* multiply = std::get_if<Multiply>(&step.op)) multiply->out.offset_bytes += 1 << 20;
  EXPECT_EQ(prepare(outside).code(), absl::StatusCode::kInvalidArgument);
  Schedule stranger = c.schedule();
  stranger.ranks[0][0].waits.push_back({{1, 0}, 0});
  EXPECT_THAT(std::string(prepare(stranger).message()), testing::HasSubstr("waits for slot 1:0"));
  Schedule chain = c.schedule();
  for (Step& step : chain.ranks[0])
    if (auto* multiply = std::get_if<Multiply>(&step.op)) multiply->accumulate = true;
  EXPECT_THAT(std::string(prepare(chain).message()), testing::HasSubstr("sum on chip"));
}

#ifdef AGMM_FAILPOINTS
TEST_P(DeviceTest, APlanThatGetsNoScratchIsRefusedAndTheNextOneIsNot) {
  const Case c{"ring", DType::kBF16, 2, 1, 1, 40, 12, 20, 1},
      larger{"ring", DType::kBF16, 2, 1, 1, 400, 120, 200, 1};
  Cluster cluster(GetParam(), c.topology());
  EXPECT_EQ(Prepare(cluster, c.problem(), c.schedule()), absl::OkStatus());
  failpoint::Arm("scratch.none");
  const absl::Status refused = Prepare(cluster, larger.problem(), larger.schedule());
  failpoint::Disarm("scratch.none");
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_THAT(std::string(refused.message()), testing::HasSubstr("of scratch"));
  PreparedPlan plan(cluster, c.problem(), c.schedule());
  const TestMatrix a = SmallIntegers(c.problem().m(), c.problem().k(), 1),
                   b = SmallIntegers(c.problem().k(), c.problem().n(), 2);
  Fill(plan, a, b);
  Reports reports(2);
  for (Rank rank = 0; rank < 2; ++rank)
    plan.Run(rank, 1, 1, Deadline::After(absl::Seconds(60)), reports.At(rank));
  for (const EpochReport& report : reports.Wait()) EXPECT_EQ(report.status, absl::OkStatus());
  EXPECT_EQ(plan.CountWrong(0, Product(a, b)), 0);
}
#endif

INSTANTIATE_TEST_SUITE_P(All, DeviceTest, testing::ValuesIn(DeviceKinds()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace agmm::test
