// Guarantees of every device besides the product: order, time stamps, and errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <map>

#include "absl/strings/str_cat.h"
#include "kernels/base/deadline.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/units.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/verify.h"
#include "tests/conformance/cases.h"

namespace agmm::test {
namespace {

class DeviceTest : public testing::TestWithParam<DeviceKind> {};

// Checks that each step starts after the previous step of its lane and after the producers of its
// waits, for stamps with an error of up to `error_ns`.
void ExpectOrdered(const Schedule& schedule, const std::vector<EpochReport>& reports,
                   int64_t error_ns) {
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
      // A transfer ends when its last `to` does, and its sender learns of an arrival late.
      const bool exact = transfer == nullptr || (transfer->to.size() == 1 &&
                                                 transfer->to[0].rank == static_cast<Rank>(rank));
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
      EXPECT_GE(time.start_ns + error_ns, reports[rank].start_ns);
      EXPECT_GE(time.end_ns, time.start_ns);
      EXPECT_LE(time.end_ns, reports[rank].end_ns + error_ns);
      EXPECT_GE(time.start_ns + error_ns, lane_end[step.lane]);
      lane_end[step.lane] = time.end_ns;
      for (const Wait& wait : step.waits) {
        if (wait.lag != 0) continue;
        EXPECT_GE(time.start_ns + 2 * error_ns, producers.at(wait.slot).ns)
            << producers.at(wait.slot).name;
      }
    }
  }
}

TEST_P(DeviceTest, StepsStartAfterTheirLaneAndTheirWaits) {
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
    PreparedPlan plan(cluster, c.problem(), c.schedule(cluster.topology()));
    plan.Fill(SmallIntegers(c.m, c.k, TestSeed()), SmallIntegers(c.k, c.n, TestSeed() + 1));
    for (uint64_t epoch = 1; epoch <= 20; ++epoch) {
      const std::vector<EpochReport> reports = plan.RunAll(epoch);
      for (const EpochReport& report : reports) ASSERT_EQ(report.status, absl::OkStatus());
      ExpectOrdered(plan.schedule(), reports, GetParam().clock_error_ns);
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
    const TestMatrix a =
        SmallIntegers(ShapeOf(plan->problem()).m, ShapeOf(plan->problem()).k, TestSeed());
    const TestMatrix b =
        SmallIntegers(ShapeOf(plan->problem()).k, ShapeOf(plan->problem()).n, TestSeed() + 1);
    plan->Fill(a, b);
    c[plan] = MatrixProduct(a, b);
  }
  Reports reports(kEpochs * 2 * 3);
  // Epochs are queued in the same order on every rank. A plan's next epoch is queued once its last
  // one has been reported and its C has been compared and poisoned.
  std::atomic<int64_t> wrong{0};
  std::latch queued(1);  // the first epochs of both plans on all ranks
  std::function<void(PreparedPlan*, Rank, uint64_t)> run = [&](PreparedPlan* plan, Rank rank,
                                                               uint64_t epoch) {
    const int index = static_cast<int>((epoch - 1) * 6 + rank * 2 + (plan == &second));
    plan->Run(rank, epoch, 1, Deadline::After(absl::Seconds(60)),
              [&, plan, rank, epoch, done = reports.At(index)](const EpochReport& report) {
                queued.wait();
                wrong += plan->CountWrong(rank, c[plan]);
                plan->Poison(rank, kC);
                if (epoch < kEpochs) run(plan, rank, epoch + 1);
                done(report);
              });
  };
  for (Rank rank = 0; rank < 3; ++rank) {
    for (PreparedPlan* plan : {&first, &second}) run(plan, rank, 1);
  }
  queued.count_down();
  for (const EpochReport& report : reports.Wait()) EXPECT_EQ(report.status, absl::OkStatus());
  EXPECT_EQ(wrong, 0);
}

// No step of another lane waits for the last copy, so only `done` shows that it has ended.
TEST_P(DeviceTest, AnEpochEndsAfterItsRelayLanes) {
  const Case c{"serial", DType::kF32, 1, 1, 1, 40, 30, 50, 1};
  Schedule schedule = c.schedule(c.topology());
  const Problem problem = c.problem();
  const Block a = ShardBlock(problem, kA, 0);
  const Place own = ResidentPlace(problem, a, 0);
  const int64_t bytes = ShardBytes(problem.mesh, problem.tensors[kA]);
  const Place first = {0, kWorkspace, 0, own.pitch_bytes, own.dtype};
  const Place second = {0, kWorkspace, bytes, own.pitch_bytes, own.dtype};
  schedule.workspace_bytes = 2 * bytes;
  schedule.ranks[0].push_back({Transfer{a, own, {first}}, 2, {{{0, 1}, 1}}, {{0, 0}}});
  schedule.ranks[0].push_back({Transfer{a, first, {second}}, 1, {{{0, 0}}}, {{0, 1}}});
  ASSERT_EQ(RelayLanes(schedule.ranks[0], 0), (std::vector<bool>{false, true, false}));
  ASSERT_EQ(Verify(problem, c.topology(), schedule), absl::OkStatus());
  Cluster cluster(GetParam(), c.topology());
  PreparedPlan plan(cluster, problem, schedule);
  plan.FillInputs(TestSeed());
  for (uint64_t epoch = 1; epoch <= 10; ++epoch) {
    Reports reports(1);
    plan.Run(0, epoch, 1, Deadline::After(absl::Seconds(60)),
             [&, done = reports.At(0)](const EpochReport& report) {
               plan.PoisonWorkspace(0);
               done(report);
             });
    EXPECT_EQ(reports.Wait()[0].status, absl::OkStatus());
  }
}

TEST_P(DeviceTest, DescribesItself) {
  const DeviceInfo info = GetParam().create(0, 1)->info();
  EXPECT_FALSE(info.kind.empty());
  EXPECT_FALSE(info.description.empty());
}

TEST_P(DeviceTest, AHeapThatDoesNotFitIsRefusedWithBothFigures) {
  const auto device = GetParam().create(0, 1);
  const absl::Status status = device->CreateHeap(int64_t{1} << 50).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              testing::ContainsRegex("^a heap of 1024 TiB was requested .* are (available|free)"));
  EXPECT_EQ(device->CreateHeap(0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(DeviceTest, ASchedulesMistakesAreRefusedByName) {
  const Case c{"ring", DType::kF32, 2, 1, 1, 40, 12, 20, 1};
  Cluster cluster(GetParam(), c.topology());
  const auto prepare = [&](const Schedule& schedule) {
    return PrepareRank0(cluster, c.problem(), schedule);
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

INSTANTIATE_TEST_SUITE_P(All, DeviceTest, testing::ValuesIn(DeviceKindsAndHidden()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace agmm::test
