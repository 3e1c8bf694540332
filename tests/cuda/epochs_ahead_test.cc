// The epochs of a rank that are submitted ahead of their ends: their number, and the events that
// they use in turn. On the model, which is set up once per process, so each test runs in its own
// process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/failpoint.h"
#include "kernels/cuda/work_clock.h"
#include "kernels/schedule/index.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/cuda_kind.h"
#include "tests/support/patience.h"

namespace agmm::test {
namespace {

// The most epochs of a rank that are submitted and not over. NOTES.md says what their work needs in
// the hardware's queues, so a test notices more, too.
constexpr int kAhead = 4;

// A product of one rank: one operation of its GPU.
const Case kAlone{"serial", DType::kF32, 1, 1, 1, 40, 12, 20, 1};
// Operations of the GPU that prepare such a plan: they write its operands and the guards.
constexpr int kPreparing = 7;

// Returns once the GPU's thread has obeyed all earlier requests.
RankState Observe(PreparedPlan& plan, bool times = false) {
  std::promise<RankState> state;
  plan.executor(0)->Observe(times, [&](const RankState& seen) { state.set_value(seen); });
  return state.get_future().get();
}

class EpochsAhead : public testing::TestWithParam<const char*> {
 protected:
  // Failed epochs whose work does not end get a second instead of ten.
  EpochsAhead() { failpoint::Arm("executor.short_grace"); }
  ~EpochsAhead() override { failpoint::Disarm("executor.short_grace"); }

  // GPU 0 never ends this epoch's product, if `plans` are prepared first.
  static void HangAt(int epoch, int plans) {
    const std::string options =
        absl::StrCat(GetParam(), ",gpus=1,hang=0@", plans * kPreparing + epoch);
    setenv("AGMM_MODEL", options.c_str(), /*overwrite=*/1);
  }
};

TEST_P(EpochsAhead, AreNoMoreThanFour) {
  constexpr int kPlans = 2 * kAhead;
  HangAt(1, kPlans);
  Cluster cluster(CudaKinds()[0], kAlone.topology());
  std::vector<std::unique_ptr<PreparedPlan>> plans;
  for (int i = 0; i < kPlans; ++i)
    plans.push_back(std::make_unique<PreparedPlan>(cluster, kAlone.problem(), kAlone.schedule()));
  Reports reports(kPlans);
  for (int i = 0; i < kPlans; ++i) plans[i]->Run(0, 1, 1, Deadline::Infinite(), reports.At(i));
  // All are in the queue after this, and the thread's turn after that begins all that may begin.
  Observe(*plans[0]);
  for (int i = 0; i < kPlans; ++i) {
    const RankState state = Observe(*plans[i]);
    EXPECT_EQ(state.epoch, i < kAhead ? 1 : 0) << i;
    EXPECT_EQ(state.behind, i >= kAhead) << i;
  }
  plans.clear();
  for (const EpochReport& report : reports.Wait()) EXPECT_FALSE(report.status.ok());
}

// If a later epoch used the same events, the first one would seem to hang, too, or would have no
// times.
TEST_P(EpochsAhead, DoNotHideTheEndAndTheTimesOfTheFirst) {
  HangAt(2, 1);
  Cluster cluster(CudaKinds()[0], kAlone.topology());
  PreparedPlan plan(cluster, kAlone.problem(), kAlone.schedule());
  Reports first(1), later(kAhead - 1);
  // No step is submitted before all epochs are in the queue.
  failpoint::Arm("executor.hold_rank_0");
  plan.Run(0, 1, 1, Deadline::After(absl::Seconds(20)), first.At(0));
  for (int i = 1; i < kAhead; ++i) plan.Run(0, 1 + i, 1, Deadline::Infinite(), later.At(i - 1));
  Observe(plan);
  failpoint::Disarm("executor.hold_rank_0");
  Observe(plan);
  const EpochReport& report = first.Wait()[0];
  EXPECT_EQ(report.status, absl::OkStatus());
  ASSERT_FALSE(report.steps.empty());
  for (const StepTime& time : report.steps) {
    EXPECT_GE(time.start_ns, report.start_ns);
    EXPECT_GE(time.end_ns, time.start_ns);
  }
  plan.executor(0)->Cancel(absl::CancelledError("the test is over"));
  for (const EpochReport& ended : later.Wait())
    EXPECT_EQ(ended.status.code(), absl::StatusCode::kCancelled);
}

TEST_P(EpochsAhead, AStepThatHangsHasBegunAndCounts) {
  HangAt(1, 1);
  Cluster cluster(CudaKinds()[0], kAlone.topology());
  PreparedPlan plan(cluster, kAlone.problem(), kAlone.schedule());
  Reports reports(1);
  EXPECT_EQ(WorkClock::begun_ns(), 0);
  plan.Run(0, 1, 1, Deadline::Infinite(), reports.At(0));
  RankState state;
  EXPECT_TRUE(Eventually([&] {
    state = Observe(plan, /*times=*/true);
    return state.epoch == 1 && state.steps[0].start_ns > 0;
  })) << "the GPU never reached the step";
  EXPECT_EQ(state.steps[0].end_ns, 0);
  EXPECT_GT(WorkClock::begun_ns(), 0);
  plan.executor(0)->Cancel(absl::CancelledError("the test is over"));
  EXPECT_EQ(reports.Wait()[0].status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(WorkClock::begun_ns(), 0);
}

TEST_P(EpochsAhead, AreGivenUpWithTheFirst) {
  HangAt(1, 2);
  Cluster cluster(CudaKinds()[0], kAlone.topology());
  PreparedPlan stuck(cluster, kAlone.problem(), kAlone.schedule()),
      behind(cluster, kAlone.problem(), kAlone.schedule());
  Reports reports(3);
  stuck.Run(0, 1, 1, Deadline::Infinite(), reports.At(0));
  for (int i = 1; i <= 2; ++i) behind.Run(0, i, 1, Deadline::Infinite(), reports.At(i));
  Observe(behind);
  EXPECT_EQ(Observe(behind).epoch, 1);
  stuck.executor(0)->Cancel(absl::CancelledError("the test is over"));
  // These have no deadline that could end them.
  for (int i = 1; i <= 2; ++i)
    EXPECT_EQ(reports.Wait()[i].status.code(), absl::StatusCode::kUnavailable);
}

// Otherwise it would submit work and send messages after its plan has failed. The report of an
// epoch that has not begun has no steps.
TEST(EpochsBehindAFailedStep, DoNotBegin) {
  setenv("AGMM_MODEL", "gpus=1,fail=cublasLtMatmul@1", /*overwrite=*/1);
  Cluster cluster(CudaKinds()[0], kAlone.topology());
  PreparedPlan plan(cluster, kAlone.problem(), kAlone.schedule());
  Reports reports(kAhead);
  // The step fails once all epochs are in the queue.
  failpoint::Arm("executor.hold_rank_0");
  for (int i = 0; i < kAhead; ++i) plan.Run(0, 1 + i, 1, Deadline::After(kPatience), reports.At(i));
  Observe(plan);
  failpoint::Disarm("executor.hold_rank_0");
  Observe(plan);
  const std::vector<EpochReport>& ended = reports.Wait();
  EXPECT_THAT(std::string(ended[0].status.message()),
              testing::HasSubstr("cublasLtMatmul on GPU 0 failed"));
  EXPECT_THAT(ended[0].steps, testing::SizeIs(1));
  for (int i = 1; i < kAhead; ++i) {
    EXPECT_EQ(ended[i].status, ended[0].status);
    EXPECT_THAT(ended[i].steps, testing::IsEmpty());
  }
}

// No event orders the work of an epoch behind one whose end was not recorded. It is that of
// another plan, which writes the same C in another lane.
TEST(EpochWithoutAnEnd, HoldsUpTheNextOne) {
  // A plan of one lane waits for no event before the one that its end waits for.
  setenv("AGMM_MODEL", "gpus=1,order=lazy,fail=cuStreamWaitEvent@1:1", /*overwrite=*/1);
  Cluster cluster(CudaKinds()[0], kAlone.topology());
  const Problem problem = kAlone.problem();
  std::vector<int64_t> offsets;
  for (const Tensor& tensor : problem.tensors)
    offsets.push_back(cluster.Allocate(ShardBytes(problem.mesh, tensor)));
  Schedule other_lane = kAlone.schedule();
  for (Step& step : other_lane.ranks[0]) ++step.lane;
  PreparedPlan first(cluster, problem, kAlone.schedule(), {}, offsets),
      next(cluster, problem, other_lane, {}, offsets);
  Reports reports(2);
  failpoint::Arm("executor.hold_rank_0");
  first.Run(0, 1, 1, Deadline::After(kPatience), reports.At(0));
  next.Run(0, 1, 1, Deadline::After(kPatience), reports.At(1));
  Observe(first);
  failpoint::Disarm("executor.hold_rank_0");
  Observe(first);
  EXPECT_THAT(std::string(reports.Wait()[0].status.message()),
              testing::HasSubstr("cuStreamWaitEvent on GPU 0 failed"));
  EXPECT_EQ(reports.Wait()[1].status, absl::OkStatus());
}

// Times are read when an epoch is reported, which is after the ends of all if the first one is held
// up by a later one.
TEST(EpochTimes, AreThoseOfTheirOwnEpoch) {
  setenv("AGMM_MODEL", "gpus=1,order=lazy", /*overwrite=*/1);
  Cluster cluster(CudaKinds()[0], kAlone.topology());
  PreparedPlan plan(cluster, kAlone.problem(), kAlone.schedule());
  constexpr int64_t kClockErrorNs = 10'000'000;
  for (uint64_t round = 0; round < 3; ++round) {
    Reports reports(kAhead);
    failpoint::Arm("executor.hold_rank_0");
    for (int i = 0; i < kAhead; ++i)
      plan.Run(0, round * kAhead + i + 1, 1, Deadline::After(absl::Seconds(20)), reports.At(i));
    Observe(plan);
    // The first epoch has begun. Its steps begin later by more than the clocks' error.
    absl::SleepFor(absl::Nanoseconds(5 * kClockErrorNs));
    const int64_t released_ns = MonotonicNanos();
    failpoint::Disarm("executor.hold_rank_0");
    Observe(plan);
    const std::vector<EpochReport>& ended = reports.Wait();
    for (int i = 0; i < kAhead; ++i) {
      ASSERT_EQ(ended[i].status, absl::OkStatus());
      for (size_t step = 0; step < ended[i].steps.size(); ++step) {
        EXPECT_GT(ended[i].steps[step].end_ns, released_ns - kClockErrorNs);
        for (int other = 0; other < i; ++other) {
          EXPECT_NE(ended[i].steps[step].end_ns, ended[other].steps[step].end_ns)
              << "epochs " << other << " and " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, EpochsAhead, testing::Values("order=eager", "order=lazy"));

}  // namespace
}  // namespace agmm::test
