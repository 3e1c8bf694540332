#include "daemon/node/runner.h"

#include <cstdlib>
#include <random>

#include "gmock/gmock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/reason.h"
#include "kernels/schedule/index.h"
#include "tests/daemon/node/runner_harness.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

// Long enough for a report that must not come.
constexpr absl::Duration kMoment = absl::Milliseconds(50);

TEST(Runner, OneNodeComputesC) {
  for (const char* algorithm : {"serial", "ring", "direct", "peer"}) {
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(algorithm);
      RunnerWorld world(1, 2);
      const Problem problem = world.ProblemOf(37, 29, 23, dtype);
      world.Fill(problem);
      world.Prepare(world.PrepareOf(1, problem, algorithm, 2));
      world.LaunchEverywhere(world.LaunchOf(7, 1, 1));
      v1::LaunchDone done;
      ASSERT_TRUE(world.node(0).DoneOf(7, &done).ok());
      EXPECT_EQ(world.WrongElements(problem), 0);
      ASSERT_EQ(done.ranks_size(), 2);
      EXPECT_EQ(done.ranks(1).rank(), 1);
      EXPECT_EQ(done.ranks(1).epoch_us_size(), 1);
      EXPECT_GT(done.ranks(1).steps_size(), 0);
      EXPECT_GE(done.ranks(1).steps(0).end_us(), done.ranks(1).steps(0).start_us());
    }
  }
}

TEST(Runner, TwoNodesComputeCTogetherEpochAfterEpoch) {
  for (const char* algorithm : {"serial", "ring", "direct"}) {
    SCOPED_TRACE(algorithm);
    RunnerWorld world(2, 2);
    const Problem problem = world.ProblemOf(65, 33, 40);
    world.Prepare(world.PrepareOf(1, problem, algorithm, 3));
    for (uint64_t job = 1; job <= 3; ++job) {
      world.Fill(problem);
      world.LaunchEverywhere(world.LaunchOf(job, 1, 1 + (job - 1) * 10, 10));
      for (int node : {0, 1}) {
        const absl::Status status = world.node(node).DoneOf(job);
        ASSERT_TRUE(status.ok()) << status;
      }
      EXPECT_EQ(world.WrongElements(problem), 0);
    }
  }
}

TEST(Runner, ALongJobKeepsTheTimesOfItsLastEpochs) {
  RunnerWorld world(1, 2);
  const Problem problem = world.ProblemOf(8, 8, 8);
  world.Fill(problem);
  world.Prepare(world.PrepareOf(1, problem));
  world.LaunchEverywhere(world.LaunchOf(1, 1, 1, 500));
  v1::LaunchDone done;
  ASSERT_TRUE(world.node(0).DoneOf(1, &done).ok());
  EXPECT_EQ(done.ranks(0).epoch_us_size(), 64);
  EXPECT_EQ(world.WrongElements(problem), 0);
}

TEST(Runner, LaunchesOfSeveralPlansRunInCommandOrder) {
  RunnerWorld world(2, 1);
  const Problem problem = world.ProblemOf(32, 32, 32), other = world.ProblemOf(16, 16, 16);
  world.Fill(problem);
  world.Prepare(world.PrepareOf(1, problem));
  world.Prepare(world.PrepareOf(2, other));
  world.LaunchEverywhere(world.LaunchOf(1, 1, 1, 40));
  world.LaunchEverywhere(world.LaunchOf(2, 2, 1, 1));
  world.LaunchEverywhere(world.LaunchOf(3, 1, 41, 1));
  for (uint64_t job : {1, 2, 3})
    for (int node : {0, 1}) EXPECT_TRUE(world.node(node).DoneOf(job).ok());
  EXPECT_EQ(world.WrongElements(problem), 0);
}

TEST(Runner, ALaunchOfAnUnknownOrReleasedPlanFails) {
  RunnerWorld world(1, 2);
  world.LaunchEverywhere(world.LaunchOf(1, 9, 1));
  EXPECT_EQ(world.node(0).DoneOf(1).code(), Code::kInternal);
  const Problem problem = world.ProblemOf(8, 8, 8);
  world.Fill(problem);
  world.Prepare(world.PrepareOf(1, problem));
  v1::ReleasePlan release;
  release.set_plan_id(1);
  world.node(0).runner->Release(release);
  // Prepared after the release, which has then finished.
  world.Prepare(world.PrepareOf(2, problem));
  world.LaunchEverywhere(world.LaunchOf(2, 1, 1));
  EXPECT_EQ(world.node(0).DoneOf(2).code(), Code::kInternal);
  world.LaunchEverywhere(world.LaunchOf(3, 2, 1));
  EXPECT_TRUE(world.node(0).DoneOf(3).ok());
}

// Two nodes, of which the second has not launched, so that the first waits for it.
class StalledRunner : public ::testing::Test {
 protected:
  StalledRunner() : world_(2, 1), problem_(world_.ProblemOf(16, 16, 16)), node_(world_.node(0)) {
    world_.Fill(problem_);
    world_.Prepare(world_.PrepareOf(1, problem_));
    world_.Prepare(world_.PrepareOf(2, problem_));
  }
  void ExpectNoReport() { EXPECT_FALSE(node_.Next(kMoment).has_value()); }

  // A message with bytes that rank 1 sends to rank 0 in epoch 1.
  Message MessageWithBytes(int64_t* bytes) {
    const Schedule schedule = world_.ScheduleOf(problem_, {"ring", 1});
    for (size_t step = 0; step < schedule.ranks[1].size(); ++step) {
      const auto* transfer = std::get_if<Transfer>(&schedule.ranks[1][step].op);
      if (transfer == nullptr) continue;
      for (size_t part = 0; part < transfer->to.size(); ++part) {
        if (transfer->to[part].rank != 0) continue;
        *bytes = transfer->block.rows.size() * RowBytes(transfer->block, transfer->to[part]);
        return {1, 1, 1, static_cast<int>(step), static_cast<int>(part)};
      }
    }
    ADD_FAILURE() << "rank 1 sends nothing";
    return {};
  }

  RunnerWorld world_;
  const Problem problem_;
  TestNode& node_;
  Receiver* const receiver_ = node_.runner.get();
};

TEST_F(StalledRunner, ADeadlineNamesTheWaitingStepAndItsProducer) {
  node_.runner->Launch(world_.LaunchOf(1, 1, 1, 1, absl::Milliseconds(500)));
  const absl::Status status = node_.DoneOf(1);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("(rank 1: send rows 8:16 of A to rank 0)"));
}

TEST_F(StalledRunner, ReportsThePositionsAndWaitsOfItsRanks) {
  v1::ReportProgress query;
  query.set_query_id(7);
  query.set_job_id(1);
  query.set_step_times(true);
  node_.runner->ReportProgress(query);
  EXPECT_EQ(node_.Next()->launch_progress().query_id(), 7);  // the node does not run the job
  node_.runner->Launch(world_.LaunchOf(1, 1, 1, 3));
  v1::RankReport rank;
  for (const Deadline end = Deadline::After(kPatience); !end.HasPassed();) {
    node_.runner->ReportProgress(query);
    const v1::LaunchProgress answer = node_.Next()->launch_progress();
    EXPECT_EQ(answer.query_id(), 7);
    ASSERT_EQ(answer.ranks_size(), 1);
    rank = answer.ranks(0);
    if (rank.progress().lanes_size() > 0 && rank.progress().lanes(0).waits_size() > 0) break;
  }
  EXPECT_EQ(rank.rank(), 0);
  EXPECT_EQ(rank.progress().epochs_done(), 0);
  EXPECT_EQ(rank.progress().epoch(), 1);
  EXPECT_GT(rank.progress().for_us(), 0);
  EXPECT_GT(rank.epoch_start_unix_us(), 0);
  EXPECT_GT(rank.steps_size(), 0);
  const v1::LaneProgress& lane = rank.progress().lanes(0);
  EXPECT_EQ(lane.step().text(), "multiply A[8:16] x B[:, 0:8]");
  const v1::StepName& producer = lane.waits(0).producer();
  EXPECT_EQ(producer.rank(), 1);
  EXPECT_EQ(producer.text(), "send rows 8:16 of A to rank 0");

  // A failed job keeps this state.
  node_.runner->Cancel(world_.CancelOf(1));
  v1::LaunchDone done;
  EXPECT_FALSE(node_.DoneOf(1, &done).ok());
  ASSERT_EQ(done.ranks_size(), 1);
  EXPECT_EQ(done.ranks(0).progress().epoch(), 1);
  EXPECT_EQ(done.ranks(0).progress().lanes(0).waits(0).producer().rank(), 1);
  EXPECT_EQ(done.ranks(0).steps_size(), rank.steps_size());
}

TEST_F(StalledRunner, ACancelledJobDrainsAndRetiresItsPlan) {
  node_.runner->Launch(world_.LaunchOf(1, 1, 1, 1000));
  ExpectNoReport();
  node_.runner->Cancel(world_.CancelOf(1));
  v1::LaunchDone done;
  const absl::Status status = node_.DoneOf(1, &done);
  EXPECT_EQ(ReasonOf(status), kReasonCancelled);
  EXPECT_TRUE(done.began());
  node_.runner->Launch(world_.LaunchOf(2, 1, 1001));
  EXPECT_EQ(node_.DoneOf(2).code(), Code::kCancelled);
}

TEST_F(StalledRunner, ACancelReachesAnEpochOnItsWayToTheDevice) {
  failpoint::Arm("runner.feed_late", 1);
  std::thread feeder([&] { node_.runner->Launch(world_.LaunchOf(1, 1, 1)); });
  EXPECT_TRUE(Eventually([] { return failpoint::Hits("runner.feed_late") == 1; }));
  node_.runner->Cancel(world_.CancelOf(1));
  feeder.join();
  failpoint::Disarm("runner.feed_late");
  EXPECT_EQ(node_.DoneOf(1).code(), Code::kCancelled);
}

TEST_F(StalledRunner, ACancelOfAnEndedJobHasNoEffect) {
  world_.LaunchEverywhere(world_.LaunchOf(1, 1, 1));
  for (int node : {0, 1}) EXPECT_TRUE(world_.node(node).DoneOf(1).ok());
  node_.runner->Cancel(world_.CancelOf(1));
  node_.runner->Cancel(world_.CancelOf(77));
  world_.Fill(problem_);
  world_.LaunchEverywhere(world_.LaunchOf(2, 1, 2));
  for (int node : {0, 1}) EXPECT_TRUE(world_.node(node).DoneOf(2).ok());
  EXPECT_EQ(world_.WrongElements(problem_), 0);
}

TEST_F(StalledRunner, ACancelKeepsEarlierLaunchesOfThePlan) {
  node_.runner->Launch(world_.LaunchOf(1, 1, 1));
  node_.runner->Launch(world_.LaunchOf(2, 1, 2));
  node_.runner->Launch(world_.LaunchOf(3, 1, 3));
  node_.runner->Cancel(world_.CancelOf(2));
  ExpectNoReport();
  world_.node(1).runner->Launch(world_.LaunchOf(1, 1, 1));
  v1::LaunchDone done;
  EXPECT_TRUE(node_.DoneOf(1, &done).ok() && done.began());
  EXPECT_TRUE(world_.node(1).DoneOf(1).ok());
  EXPECT_EQ(world_.WrongElements(problem_), 0);
  for (uint64_t job : {2, 3}) {
    EXPECT_EQ(node_.DoneOf(job, &done).code(), Code::kCancelled);
    EXPECT_FALSE(done.began());  // though fed to the device
  }
}

TEST_F(StalledRunner, ACancelDoesNotWaitForOtherPlans) {
  node_.runner->Launch(world_.LaunchOf(1, 1, 1, 100));
  node_.runner->Launch(world_.LaunchOf(2, 2, 1, 100));
  node_.runner->Cancel(world_.CancelOf(2));
  EXPECT_EQ(node_.DoneOf(2).code(), Code::kCancelled);
  ExpectNoReport();
  world_.node(1).runner->Launch(world_.LaunchOf(1, 1, 1, 100));
  EXPECT_TRUE(node_.DoneOf(1).ok());
}

TEST_F(StalledRunner, AFailedLaunchDoesNotStopOthersOnTheDevice) {
  node_.runner->Launch(world_.LaunchOf(1, 1, 1, 100));
  world_.LaunchEverywhere(world_.LaunchOf(2, 2, 1, 10));
  node_.runner->Cancel(world_.CancelOf(1));
  EXPECT_EQ(node_.DoneOf(1).code(), Code::kCancelled);
  EXPECT_TRUE(node_.DoneOf(2).ok());
  EXPECT_TRUE(world_.node(1).DoneOf(2).ok());
  EXPECT_EQ(world_.WrongElements(problem_), 0);
}

TEST_F(StalledRunner, AGenerationEndsWhileItRunsAndAnotherBegins) {
  node_.runner->Launch(world_.LaunchOf(1, 1, 1, 1000));
  node_.runner->Launch(world_.LaunchOf(2, 2, 1));
  world_.EndGeneration();
  // Jobs of an ended generation are not reported.
  ExpectNoReport();
  world_.Prepare(world_.PrepareOf(1, problem_));
  world_.Fill(problem_);
  world_.LaunchEverywhere(world_.LaunchOf(1, 1, 1, 3));
  for (int node : {0, 1}) EXPECT_TRUE(world_.node(node).DoneOf(1).ok());
  EXPECT_EQ(world_.WrongElements(problem_), 0);
}

TEST_F(StalledRunner, MessagesWithoutARunningPlanAreDropped) {
  int64_t bytes = 0;
  const Message good = MessageWithBytes(&bytes);
  Arrival arrival;
  const auto verdict = [&](Message message, int64_t length, int from = 1) {
    return receiver_->Accept(from, message, length, &arrival);
  };
  Message bad = good;
  bad.plan = 99;
  EXPECT_EQ(verdict(bad, bytes), Receiver::Verdict::kDrop);
  bad = good;
  bad.epoch = 0;
  EXPECT_EQ(verdict(bad, bytes), Receiver::Verdict::kDrop);
  bad.epoch = uint64_t{1} << 40;
  EXPECT_EQ(verdict(bad, bytes), Receiver::Verdict::kDrop);
  bad = good;
  bad.step = 1000;
  EXPECT_EQ(verdict(bad, bytes), Receiver::Verdict::kDrop);
  EXPECT_EQ(verdict(good, bytes - 1), Receiver::Verdict::kDrop);
  EXPECT_EQ(verdict(good, bytes, 0), Receiver::Verdict::kDrop);

  node_.runner->Launch(world_.LaunchOf(1, 1, 1));
  node_.runner->Cancel(world_.CancelOf(1));
  EXPECT_EQ(node_.DoneOf(1).code(), Code::kCancelled);
  EXPECT_EQ(verdict(good, bytes), Receiver::Verdict::kDrop);
}

TEST_F(StalledRunner, AMessageThatComesBeforeItsLaunchWaitsForIt) {
  int64_t bytes = 0;
  const Message message = MessageWithBytes(&bytes);
  Arrival arrival;
  ASSERT_EQ(receiver_->Accept(1, message, bytes, &arrival), Receiver::Verdict::kPark);
  node_.runner->Launch(world_.LaunchOf(1, 1, 1));
  ASSERT_EQ(receiver_->Accept(1, message, bytes, &arrival), Receiver::Verdict::kReceive);
  const Rows& to = arrival.to;
  EXPECT_EQ(to.bytes(), bytes);
  // The message of rank 1: its rows of A.
  const Block shard = ShardBlock(problem_, kA, 1);
  for (int64_t row = 0; row < to.rows; ++row) {
    auto* out = reinterpret_cast<float*>(to.data + row * to.pitch_bytes);
    for (int64_t col = 0; col < ShapeOf(problem_).k; ++col)
      out[col] = world_.ValueOf(kA, shard.rows.begin + row, col);
  }
  receiver_->Arrived(1, message, arrival, absl::OkStatus());
  EXPECT_TRUE(node_.DoneOf(1).ok());
}

TEST_F(StalledRunner, AFailedJobIsReportedWhenNothingMoreArrivesForItsPlan) {
  int64_t bytes = 0;
  const Message message = MessageWithBytes(&bytes);
  Arrival arrival;
  node_.runner->Launch(world_.LaunchOf(1, 1, 1));
  ASSERT_EQ(receiver_->Accept(1, message, bytes, &arrival), Receiver::Verdict::kReceive);
  node_.runner->Cancel(world_.CancelOf(1));
  ExpectNoReport();
  receiver_->Arrived(1, message, arrival, absl::OkStatus());
  EXPECT_EQ(node_.DoneOf(1).code(), Code::kCancelled);
}

TEST_F(StalledRunner, AGenerationDoesNotEndWhileSomethingArrives) {
  int64_t bytes = 0;
  const Message message = MessageWithBytes(&bytes);
  Arrival arrival;
  node_.runner->Launch(world_.LaunchOf(1, 1, 1));
  ASSERT_EQ(receiver_->Accept(1, message, bytes, &arrival), Receiver::Verdict::kReceive);
  Notification drained;
  node_.runner->EndGeneration(absl::AbortedError("over"), [&] { drained.Notify(); });
  EXPECT_FALSE(drained.WaitFor(kMoment));
  receiver_->Arrived(1, message, std::exchange(arrival, {}), absl::AbortedError("over"));
  EXPECT_TRUE(drained.WaitFor(kPatience));
}

TEST_F(StalledRunner, BytesThatDoNotArriveFailTheJob) {
  int64_t bytes = 0;
  const Message message = MessageWithBytes(&bytes);
  Arrival arrival;
  node_.runner->Launch(world_.LaunchOf(1, 1, 1));
  ASSERT_EQ(receiver_->Accept(1, message, bytes, &arrival), Receiver::Verdict::kReceive);
  receiver_->Arrived(1, message, arrival, absl::AbortedError("the connection broke"));
  const absl::Status status = node_.DoneOf(1);
  EXPECT_EQ(status.code(), Code::kAborted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the connection broke"));
}

TEST_F(StalledRunner, APlanUsesTheWorkspaceOfEachLaunch) {
  for (uint64_t epoch = 1; epoch <= 6; ++epoch) {
    world_.Fill(problem_);
    v1::LaunchJob launch = world_.LaunchOf(epoch, 1, epoch);
    const int64_t place = RunnerWorld::kHeapBytes / 2 + (epoch % 3) * 65536;
    launch.set_workspace_offset_bytes(place);
    world_.PoisonWorkspaces();
    world_.LaunchEverywhere(launch);
    for (int node : {0, 1}) ASSERT_TRUE(world_.node(node).DoneOf(epoch).ok());
    EXPECT_EQ(world_.WrongElements(problem_), 0);
    EXPECT_TRUE(world_.WorkspaceWritten(place, place + 32768));
    EXPECT_FALSE(world_.WorkspaceWritten(RunnerWorld::kHeapBytes / 2, place));
  }
}

TEST_F(StalledRunner, AWorkspaceOutsideTheHeapFailsTheJobByName) {
  v1::LaunchJob launch = world_.LaunchOf(1, 1, 1);
  launch.set_workspace_offset_bytes(RunnerWorld::kHeapBytes);
  node_.runner->Launch(launch);
  const absl::Status status = node_.DoneOf(1);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("the workspace"));
}

// Commands of a sequencer, at random: every launch is reported once, a plan's in command order, and
// those before a cancelled one succeed.
TEST(Runner, RandomLaunchesAndCancelsAreAllReported) {
  const char* given = std::getenv("AGMM_SEED");
  const uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
  SCOPED_TRACE(testing::Message() << "AGMM_SEED=" << seed);
  std::mt19937_64 random(seed);
  RunnerWorld world(2, 2);
  const Problem problem = world.ProblemOf(24, 24, 24);
  world.Fill(problem);
  uint64_t plan = 0, job = 0;
  for (int round = 0; round < 30; ++round) {
    if (random() % 8 == 0) world.EndGeneration();
    world.Prepare(world.PrepareOf(++plan, problem));
    const int jobs = 1 + static_cast<int>(random() % 6);
    const int cancelled = static_cast<int>(random() % (jobs + 3));  // beyond the last: none
    uint64_t epoch = 1;
    const uint64_t first = job + 1;
    for (int i = 0; i < jobs; ++i) {
      const int epochs = 1 + static_cast<int>(random() % 12);
      world.LaunchEverywhere(world.LaunchOf(++job, plan, epoch, epochs));
      epoch += epochs;
    }
    absl::SleepFor(absl::Microseconds(random() % 3000));
    // Cancels the later jobs, too, like the sequencer.
    for (int i = cancelled; i < jobs; ++i)
      for (int node : {1, 0}) world.node(node).runner->Cancel(world.CancelOf(first + i));
    std::vector<absl::Status> ends[2];
    for (int node : {0, 1}) {
      for (int i = 0; i < jobs; ++i) {
        const absl::Status status = world.node(node).DoneOf(first + i);
        ASSERT_NE(status.code(), Code::kUnknown) << status;
        if (i < cancelled) {
          EXPECT_TRUE(status.ok()) << status;
        } else if (!status.ok()) {
          EXPECT_EQ(status.code(), Code::kCancelled) << status;
        }
      }
    }
    v1::ReleasePlan release;
    release.set_plan_id(plan);
    for (int node : {0, 1}) world.node(node).runner->Release(release);
  }
  EXPECT_EQ(world.WrongElements(problem), 0);
}

}  // namespace
}  // namespace agmm
