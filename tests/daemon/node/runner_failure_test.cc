// Errors of failed jobs, and their effect on other jobs.
#include "gmock/gmock.h"
#include "tests/daemon/node/runner_harness.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Code = absl::StatusCode;

TEST(Runner, ADifferentHashIsRefusedWithBothValues) {
  RunnerWorld world(1, 2);
  v1::PreparePlan command = world.PrepareOf(1, world.ProblemOf(8, 8, 8));
  const std::string mine = command.plan_hash();
  command.set_plan_hash("00000000000000ff");
  world.node(0).runner->Prepare(command);
  const auto report = world.node(0).Next();
  ASSERT_TRUE(report.has_value());
  const absl::Status status = FromProto(report->plan_prepared().error());
  EXPECT_EQ(status.code(), Code::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr(mine));
  EXPECT_THAT(std::string(status.message()), HasSubstr("00000000000000ff"));
}

TEST(Runner, NonConsecutiveEpochsFailTheLaunch) {
  RunnerWorld world(1, 2);
  world.Prepare(world.PrepareOf(1, world.ProblemOf(8, 8, 8)));
  world.LaunchEverywhere(world.LaunchOf(1, 1, 5));
  EXPECT_EQ(world.node(0).DoneOf(1).code(), Code::kInternal);
}

class RunnerFailure : public ::testing::Test {
 protected:
  RunnerFailure() : problem_(world_.ProblemOf(16, 16, 16)) {
    world_.Fill(problem_);
    for (uint64_t plan : {1, 2}) world_.Prepare(world_.PrepareOf(plan, problem_));
  }

  RunnerWorld world_{2, 1};
  const Problem problem_;
};

TEST_F(RunnerFailure, ADeadlineReportsTheCompletedEpochs) {
  world_.node(0).runner->Launch(world_.LaunchOf(1, 1, 1, 5, absl::Seconds(1)));
  world_.node(1).runner->Launch(world_.LaunchOf(1, 1, 1, 2));
  ASSERT_TRUE(world_.node(1).DoneOf(1).ok());
  const absl::Status status = world_.node(0).DoneOf(1);
  EXPECT_EQ(status.code(), Code::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), StartsWith("2 of 5 epochs done: rank 0"));
}

TEST_F(RunnerFailure, AMessageThatIsLostBeforeItsLaunchFailsTheJobByName) {
  world_.node(0).runner->Lost(1, {1, 1, 1, 0, 0},
                              absl::ResourceExhaustedError("node 1 is far ahead"));
  for (int node : {0, 1}) world_.node(node).runner->Launch(world_.LaunchOf(1, 1, 1));
  const absl::Status status = world_.node(0).DoneOf(1);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(), "node 1 is far ahead");
  world_.node(1).runner->Cancel(world_.CancelOf(1));
  EXPECT_NE(world_.node(1).DoneOf(1).code(), Code::kUnknown);
}

TEST_F(RunnerFailure, MessagesOfAFailedJobWriteNothingAfterItsReport) {
  constexpr int64_t kWorkspace = RunnerWorld::kHeapBytes / 2;
  world_.HoldMessagesTo(0);
  v1::LaunchJob first = world_.LaunchOf(1, 1, 1), second = world_.LaunchOf(2, 2, 1);
  for (v1::LaunchJob* launch : {&first, &second}) launch->set_workspace_offset_bytes(kWorkspace);
  world_.LaunchEverywhere(first);
  ASSERT_TRUE(world_.WaitUntilHeld(1));
  for (int node : {0, 1}) world_.node(node).runner->Cancel(world_.CancelOf(1));
  EXPECT_EQ(world_.node(0).DoneOf(1).code(), Code::kCancelled);
  // Node 1 had received everything that it needs.
  EXPECT_NE(world_.node(1).DoneOf(1).code(), Code::kUnknown);

  // After the reports the workspace may belong to another plan.
  world_.PoisonWorkspaces();
  world_.LetMessagesGo();
  EXPECT_FALSE(world_.WorkspaceWritten(kWorkspace, RunnerWorld::kHeapBytes));
  world_.LaunchEverywhere(second);
  for (int node : {0, 1}) EXPECT_TRUE(world_.node(node).DoneOf(2).ok());
  EXPECT_EQ(world_.WrongElements(problem_), 0);
}

}  // namespace
}  // namespace agmm
