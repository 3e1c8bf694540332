#include "daemon/measure/measurer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/daemon/measure/measurer_harness.h"
#include "tests/support/logged.h"

namespace agmm {
namespace {

using testing::HasSubstr;
using testing::Not;
using State = v1::MachineStatus;

TEST_F(MeasurerTest, BeginsOnceTheWorldHasBeenIdleForAWhile) {
  EXPECT_EQ(Status().state(), State::STATE_WAITING);
  EXPECT_EQ(Status().world().preset(), "cpu-tcp");
  Advance(kQuiet - absl::Milliseconds(1));
  EXPECT_TRUE(Take().empty());
  Advance(absl::Milliseconds(1));
  EXPECT_FALSE(Take().empty());
  EXPECT_EQ(Status().state(), State::STATE_MEASURING);
}

TEST_F(MeasurerTest, AWorldWithoutAllOfItsNodesHasThePresetOfItsDevices) {
  preset_ = measure::PresetFor("cuda");
  members_.missing = 1;
  Make();
  EXPECT_EQ(Status().world().preset(), "h100-nvlink");
  Do([&] {
    EXPECT_EQ(measurer_->machine()->name, "h100-nvlink");
    EXPECT_EQ(measurer_->machine()->heap_bytes, 0) << "the heaps of the devices count";
  });
}

TEST_F(MeasurerTest, MeasuresAllFiguresAndHoldsNothingAfterwards) {
  MeasureAll();
  const v1::WorldMachine world = Status().world();
  EXPECT_EQ(world.machine().version(), 1);
  EXPECT_TRUE(world.has_measure_time());
  EXPECT_EQ(world.paths_size(), 2);
  EXPECT_EQ(world.devices_size(), 2);
  EXPECT_TRUE(world.errors().empty()) << world.errors(0);
  EXPECT_EQ(world.paths(0).path(), "a wire");
  Do([&] {
    EXPECT_EQ(measurer_->machine()->name, "test");
    EXPECT_EQ(measurer_->machine()->version, 1);
  });
  EXPECT_EQ(TakenBytes(), 0);
  EXPECT_GT(launches_, 0);
  const int64_t probes = metrics_.counter("measure_probes_total")->value();
  EXPECT_GT(probes, 0);
  EXPECT_EQ(released_, 2 * probes);
  EXPECT_EQ(placed_, dropped_);
  EXPECT_GT(placed_, released_) << "large memory is placed in pieces";
}

// A message may arrive before its receiver begins the epoch.
TEST_F(MeasurerTest, TheTimeOfAMessageContainsThatBetweenEpochs) {
  between_us_ = 300;
  MeasureAll();
  EXPECT_NEAR(Status().world().paths(0).latency_us(), (500.0 + 300) / 2, 1);
}

TEST_F(MeasurerTest, AMachineThatIsNotValidIsNeitherUsedNorKept) {
  // A torus has only links within it, and these nodes have measured ones between them.
  preset_.mutable_within()->set_wiring(v1::MachineLinks::TORUS);
  preset_.clear_between();
  Make();
  const Logged log;
  MeasureAll();
  const v1::WorldMachine world = Status().world();
  EXPECT_EQ(world.machine().name(), "cpu-tcp");
  EXPECT_FALSE(world.has_measure_time());
  ASSERT_EQ(world.errors_size(), 1);
  EXPECT_THAT(world.errors(0), HasSubstr("between.wiring is missing"));
  EXPECT_THAT(log.text(), HasSubstr("between.wiring is missing"));
  EXPECT_THAT(log.text(), Not(HasSubstr("measured the world")));
  Settle();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(MeasurerTest, ARestartTakesTheMachineFromDisk) {
  MeasureAll();
  const v1::WorldMachine world = Status().world();
  Settle();
  launches_ = 0;
  Make();
  EXPECT_EQ(Status().world().SerializeAsString(), world.SerializeAsString());
  EXPECT_EQ(Status().state(), State::STATE_IDLE);
  Advance(kQuiet);
  EXPECT_TRUE(Take().empty());
  EXPECT_EQ(launches_, 0);
}

TEST_F(MeasurerTest, OtherHardwareIsMeasuredAgain) {
  MeasureAll();
  const std::string before = Status().world().hardware(2);
  members_.mutable_ranks()[1].device = "cpu: 64 threads";
  Make();
  EXPECT_FALSE(Status().world().has_measure_time());
  MeasureAll();
  EXPECT_EQ(Status().world().machine().version(), 1);
  EXPECT_NE(Status().world().hardware(2), before);
  // A node that comes back as it was needs no other measurement.
  members_.mutable_ranks()[1].device = "";
  Make();
  EXPECT_EQ(Status().world().hardware(2), before);
}

TEST_F(MeasurerTest, ANodeThatReturnsWithOtherHardwareIsMeasuredAgain) {
  MeasureAll();
  Do([&] {
    measurer_->OnGenerationEnded({1}, absl::AbortedError("lost"));
    members_.mutable_ranks()[1].processor = "another processor";
    measurer_->OnReady();
  });
  Settle();
  EXPECT_FALSE(Status().world().has_measure_time());
  MeasureAll();
  EXPECT_THAT(Status().world().hardware(2), HasSubstr("another processor"));
  // Plans are kept by the version.
  EXPECT_EQ(Status().world().machine().version(), 2);
  Do([&] {
    members_.mutable_ranks()[1].processor = "";
    measurer_->OnReady();
  });
  Settle();
  EXPECT_TRUE(Status().world().has_measure_time());
  EXPECT_EQ(Status().world().machine().version(), 3);
  Do([&] { EXPECT_EQ(measurer_->machine()->version, 3); });
}

TEST_F(MeasurerTest, ATornFileIsReplaced) {
  MeasureAll();
  const std::string file = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      return entry.path().string();
    return std::string();
  }();
  std::ofstream(file) << "machine { versi";
  Make();
  EXPECT_FALSE(Status().world().has_measure_time());
  MeasureAll();
  EXPECT_EQ(Status().world().machine().version(), 1);
  Settle();
  Make();
  EXPECT_TRUE(Status().world().has_measure_time());
}

TEST_F(MeasurerTest, TheVersionCountsMeasurements) {
  MeasureAll();
  for (int version : {2, 3}) {
    Do([&] { measurer_->Measure(); });
    Advance(absl::Seconds(1));
    AnswerAll();
    EXPECT_EQ(Status().world().machine().version(), version);
  }
  Settle();
  Make();
  EXPECT_EQ(Status().world().machine().version(), 3);
}

TEST_F(MeasurerTest, NothingIsMeasuredWhileJobsRun) {
  idle_ = false;
  for (int i = 0; i < 5; ++i) {
    Advance(kQuiet);
    EXPECT_TRUE(Take().empty());
  }
  EXPECT_EQ(Status().waits_for(), "jobs to end");
  idle_ = true;
  MeasureAll();
  EXPECT_EQ(Status().world().machine().version(), 1);
}

TEST_F(MeasurerTest, AJobWaitsForTheLaunchInProgressAlone) {
  Advance(kQuiet);
  const auto launch = AnswerUntil(v1::Command::kLaunchJob);
  EXPECT_GT(TakenBytes(), 0);
  auto ran = std::make_shared<bool>(false);
  Do([&] {
    Use([this, ran] {
      *ran = true;
      idle_ = false;  // the job is admitted
      EXPECT_EQ(placement_.used_bytes(0, MemoryClass::kWorkspace), 0);
    });
  });
  EXPECT_FALSE(*ran);
  for (const auto& [node, command] : launch)
    Do([&] { measurer_->OnReport(node, *AnswerTo(node, command)); });
  EXPECT_TRUE(*ran);
  // The measurement sends no other command before the job, or while it runs.
  for (const auto& [node, command] : Take())
    EXPECT_TRUE(command.has_cancel_launch() || command.has_release_plan() ||
                command.has_drop_tensor())
        << command.ShortDebugString();
  for (int i = 0; i < 3; ++i) {
    Advance(kQuiet);
    EXPECT_TRUE(Take().empty());
  }
  EXPECT_EQ(metrics_.counter("measure_probes_dropped_total")->value(), 1);
  // The measurement continues after the job.
  idle_ = true;
  MeasureAll();
  EXPECT_TRUE(Status().world().errors().empty());
}

TEST_F(MeasurerTest, ACallCancelsTheLaunchInProgress) {
  Advance(kQuiet);
  const auto launch = AnswerUntil(v1::Command::kLaunchJob);
  EXPECT_FALSE(UseRuns());
  EXPECT_FALSE(UseRuns());
  // The second call finds it cancelled.
  const auto cancelled = Take();
  ASSERT_EQ(cancelled.size(), 2u);
  for (size_t i = 0; i < cancelled.size(); ++i) {
    EXPECT_EQ(cancelled[i].node, launch[i].node);
    EXPECT_EQ(cancelled[i].command.cancel_launch().job_id(),
              launch[i].command.launch_job().job_id());
  }
  launch_error_ = absl::CancelledError("a call needs the devices");
  for (const auto& [node, command] : launch)
    Do([&] { measurer_->OnReport(node, *AnswerTo(node, command)); });
  for (const auto& [node, command] : Take())
    EXPECT_TRUE(command.has_release_plan() || command.has_drop_tensor());
  EXPECT_EQ(TakenBytes(), 0);
  EXPECT_TRUE(UseRuns());
  // The probe has not failed: it is run again.
  launch_error_ = absl::OkStatus();
  MeasureAll();
  EXPECT_TRUE(Status().world().errors().empty());
  EXPECT_EQ(Status().world().paths_size(), 2);
}

TEST_F(MeasurerTest, AJobWaitsForOnePieceOfMemoryAlone) {
  Advance(kQuiet);
  const auto answer = [&](const std::vector<FakeMembers::Sent>& sent) {
    for (const auto& [node, command] : sent)
      Do([&] { measurer_->OnReport(node, *AnswerTo(node, command)); });
  };
  std::vector<FakeMembers::Sent> fill;
  for (bool several = false; !several;) {
    answer(fill);
    const auto place = AnswerUntil(v1::Command::kPlaceTensor);
    const int64_t bytes = place[0].command.place_tensor().tensor().shard_bytes();
    EXPECT_LE(bytes, 2 << 20);
    several = bytes < TakenBytes();
    answer(place);
    fill = AnswerUntil(v1::Command::kFillShards);
  }
  auto ran = std::make_shared<bool>(false);
  Do([&] { Use([ran] { *ran = true; }); });
  EXPECT_FALSE(*ran);
  answer(fill);
  EXPECT_TRUE(*ran);
  EXPECT_EQ(TakenBytes(), 0);
  for (const auto& [node, command] : Take())
    EXPECT_TRUE(command.has_release_plan() || command.has_drop_tensor());
}

// A large page that belongs to two tensors would never be backed as one.
TEST_F(MeasurerTest, PiecesOfMemoryEndWhereLargePagesDo) {
  Do([&] { ASSERT_TRUE(placement_.Allocate({0, 1}, 4096, MemoryClass::kTensor).ok()); });
  Advance(kQuiet);
  std::vector<std::pair<int64_t, int64_t>> pieces;  // begin and end in the heap
  for (int64_t taken = 0; pieces.size() < 3;) {
    for (const auto& [node, command] : AnswerUntil(v1::Command::kPlaceTensor)) {
      Do([&, node = node, command = command] {
        measurer_->OnReport(node, *AnswerTo(node, command));
      });
      const v1::Tensor& piece = command.place_tensor().tensor();
      if (node != 0) continue;
      if (TakenBytes() != std::exchange(taken, TakenBytes())) pieces.clear();
      pieces.emplace_back(piece.offset_bytes(), piece.offset_bytes() + piece.shard_bytes());
    }
  }
  EXPECT_EQ(pieces[0].first, 4096);
  EXPECT_EQ(pieces[0].second, 2 << 20);
  EXPECT_EQ(pieces[1], std::pair(int64_t{2} << 20, int64_t{4} << 20));
  EXPECT_EQ(pieces[2].first, 4 << 20);
}

TEST_F(MeasurerTest, AJobDoesNotWaitForAPlanOfAMeasurement) {
  Advance(kQuiet);
  const auto prepare = AnswerUntil(v1::Command::kPreparePlan);
  EXPECT_TRUE(UseRuns());
  for (const auto& [node, command] : prepare)
    Do([&] { measurer_->OnReport(node, *AnswerTo(node, command)); });
  // The plan is released, and no memory is taken for it.
  for (const auto& [node, command] : Take()) EXPECT_TRUE(command.has_release_plan());
  EXPECT_EQ(TakenBytes(), 0);
}

TEST_F(MeasurerTest, ACallBetweenTwoProbesDefersTheSecond) {
  Advance(kQuiet);
  const auto prepare = AnswerUntil(v1::Command::kPreparePlan);
  Do([&] {
    FailPlan(prepare);
    EXPECT_TRUE(measurer_->MakeWay());
  });
  Settle();
  Take();
  Advance(kQuiet - absl::Milliseconds(1));
  EXPECT_TRUE(Take().empty());
  Advance(absl::Milliseconds(1));
  EXPECT_FALSE(Take().empty());
}

TEST_F(MeasurerTest, HardwareThatChangesBetweenTwoProbesIsMeasuredFromTheBeginning) {
  Do([&] { measurer_->Measure(); });
  Advance(kQuiet);
  const auto prepare = AnswerUntil(v1::Command::kPreparePlan);
  Do([&] {
    FailPlan(prepare);
    members_.mutable_ranks()[1].processor = "another processor";
    measurer_->OnReady();
  });
  MeasureAll();
  EXPECT_TRUE(Status().world().errors().empty());
  EXPECT_THAT(Status().world().hardware(2), HasSubstr("another processor"));
}

TEST_F(MeasurerTest, CallsThatWaitKeepTheirOrder) {
  Advance(kQuiet);
  const auto launch = AnswerUntil(v1::Command::kLaunchJob);
  auto order = std::make_shared<std::vector<int>>();
  Do([&] {
    for (int call : {1, 2, 3}) Use([order, call] { order->push_back(call); });
  });
  EXPECT_TRUE(order->empty());
  for (const auto& [node, command] : launch)
    Do([&] { measurer_->OnReport(node, *AnswerTo(node, command)); });
  EXPECT_THAT(*order, testing::ElementsAre(1, 2, 3));
}

TEST_F(MeasurerTest, TheEndOfAGenerationFreesTheMemoryAndTheCallsThatWait) {
  Advance(kQuiet);
  AnswerUntil(v1::Command::kLaunchJob);
  auto ran = std::make_shared<bool>(false);
  Do([&] { Use([ran] { *ran = true; }); });
  Do([&] { measurer_->OnGenerationEnded({1}, absl::AbortedError("lost")); });
  EXPECT_TRUE(*ran);
  EXPECT_EQ(TakenBytes(), 0);
  members_.missing = 1;
  Do([&] { measurer_->OnReady(); });
  Advance(kQuiet);
  Take();
  EXPECT_EQ(Status().waits_for(), "all nodes to join");
  members_.missing = -1;
  Do([&] { measurer_->OnReady(); });
  MeasureAll();
  EXPECT_EQ(Status().world().machine().version(), 1);
}

// A node that sends heartbeats but no reports must not hold the calls that wait.
TEST_F(MeasurerTest, ANodeThatDoesNotEndAStageIsDropped) {
  const absl::Duration limit = Parts().stage_limit;
  for (const auto stage :
       {v1::Command::kPlaceTensor, v1::Command::kFillShards, v1::Command::kLaunchJob}) {
    SCOPED_TRACE(stage);
    members_.lost.clear();
    Do([&] { measurer_->Measure(); });
    Advance(kQuiet);
    const auto sent = AnswerUntil(stage);
    ASSERT_EQ(sent.size(), 2u);
    ASSERT_EQ(sent[0].node, 0);
    // Earlier stages have no part in the limit.
    Advance(limit - absl::Milliseconds(1));
    Do([&] { measurer_->OnReport(0, *AnswerTo(0, sent[0].command)); });
    auto ran = std::make_shared<bool>(false);
    Do([&] { Use([ran] { *ran = true; }); });
    EXPECT_TRUE(members_.lost.empty());
    Advance(absl::Milliseconds(1));
    ASSERT_EQ(members_.lost.size(), 1u);
    EXPECT_EQ(members_.lost[0].first, 1);
    EXPECT_THAT(members_.lost[0].second, HasSubstr("128 B from rank 0 to rank 1"));
    EXPECT_THAT(members_.lost[0].second, HasSubstr("10s"));
    // The node may write to the memory until the generation has ended.
    EXPECT_FALSE(*ran);
    EXPECT_GT(TakenBytes(), 0);
    Do([&] { measurer_->OnGenerationEnded({1}, absl::AbortedError("lost")); });
    EXPECT_TRUE(*ran);
    EXPECT_EQ(TakenBytes(), 0);
    // It is not dropped again for a measurement that no one asked for.
    Take();
    Do([&] { measurer_->OnReady(); });
    Advance(10 * kQuiet);
    EXPECT_TRUE(Take().empty());
    EXPECT_EQ(Status().state(), State::STATE_IDLE);
    ASSERT_EQ(Status().world().errors_size(), 1);
    EXPECT_THAT(Status().world().errors(0), HasSubstr("node n1 was dropped: it did not end"));
  }
}

TEST_F(MeasurerTest, AProbeWhoseStagesAllEndDropsNoNode) {
  const absl::Duration almost = Parts().stage_limit - absl::Milliseconds(1);
  Advance(kQuiet);
  for (const auto stage : {v1::Command::kPlaceTensor, v1::Command::kFillShards,
                           v1::Command::kLaunchJob, v1::Command::kLaunchJob}) {
    for (const auto& [node, command] : AnswerUntil(stage)) {
      Advance(almost / 2);
      Do([&, node = node, command = command] {
        measurer_->OnReport(node, *AnswerTo(node, command));
      });
    }
  }
  AnswerAll();
  Advance(2 * almost);
  EXPECT_TRUE(members_.lost.empty());
  EXPECT_EQ(Status().world().machine().version(), 1);
}

TEST_F(MeasurerTest, EpochsOfALaunchTakeMillisecondsTogether) {
  for (const auto& [epoch_us, count] :
       {std::pair(20.0, 64), {600.0, 13}, {3000.0, 2}, {50'000.0, 2}}) {
    epoch_us_ = epoch_us;
    Do([&] { measurer_->Measure(); });
    Advance(absl::Seconds(1));
    AnswerUntil(v1::Command::kLaunchJob);
    // Its first launch is one epoch.
    Do([&] { measurer_->OnGenerationEnded({}, absl::AbortedError("lost")); });
    Do([&] { measurer_->OnReady(); });
    Advance(kQuiet);
    for (int launch = 0; launch < 4; ++launch) {
      const auto sent = AnswerUntil(v1::Command::kLaunchJob);
      // 8 ms, but at least two and at most 64 epochs, and four times those of the last launch.
      const int most = 1 << 2 * launch;
      EXPECT_EQ(sent[0].command.launch_job().epoch_count(), std::min(count, most)) << epoch_us;
      for (const auto& [node, command] : sent)
        Do([&] { measurer_->OnReport(node, *AnswerTo(node, command)); });
    }
    Do([&] { measurer_->OnGenerationEnded({}, absl::AbortedError("lost")); });
    Do([&] { measurer_->OnReady(); });
    Take();
  }
}

TEST_F(MeasurerTest, LaunchesGoOnWhileTheirTimesSpread) {
  MeasureAll();
  const int undisturbed = std::exchange(launches_, 0);
  for (const auto& [factor, more] : {std::pair(1.1, false), {3.0, true}}) {
    launches_ = 0;
    disturbed_ = factor;
    Do([&] { measurer_->Measure(); });
    MeasureAll();
    if (more) {
      EXPECT_GT(launches_, 2 * undisturbed);
    } else {
      EXPECT_EQ(launches_, undisturbed);
    }
  }
}

TEST_F(MeasurerTest, AProbeThatFailsIsNamedAndTheOthersGoOn) {
  launch_error_ = absl::InternalError("the wire is cut");
  Advance(kQuiet);
  const auto launch = AnswerUntil(v1::Command::kLaunchJob);
  Do([&] { measurer_->OnReport(launch[0].node, *AnswerTo(launch[0].node, launch[0].command)); });
  // The other node waits for a message that will not come.
  const auto cancelled = Take();
  ASSERT_EQ(cancelled.size(), 1u);
  EXPECT_EQ(cancelled[0].command.cancel_launch().job_id(), launch[0].command.launch_job().job_id());
  Do([&] { measurer_->OnReport(launch[1].node, *AnswerTo(launch[1].node, launch[1].command)); });
  launch_error_ = absl::OkStatus();
  AnswerAll();
  const v1::WorldMachine world = Status().world();
  ASSERT_EQ(world.errors_size(), 1);
  EXPECT_THAT(world.errors(0), HasSubstr("128 B from rank 0 to rank 1: node n"));
  EXPECT_THAT(world.errors(0), HasSubstr("the wire is cut"));
  EXPECT_EQ(world.machine().version(), 1);
}

TEST_F(MeasurerTest, AFullHeapIsLeftAlone) {
  Do([&] {
    ASSERT_TRUE(placement_.Allocate({0, 1}, kHeapBytes - 4096, MemoryClass::kTensor).ok());
  });
  MeasureAll();
  EXPECT_EQ(launches_, 0);
  EXPECT_FALSE(Status().world().has_measure_time());
  ASSERT_FALSE(Status().world().errors().empty());
  EXPECT_THAT(Status().world().errors(0), HasSubstr("free"));
}

TEST_F(MeasurerTest, AMeasurementThatContinuesWithLessMemoryTakesLess) {
  Advance(kQuiet);
  AnswerUntil(v1::Command::kLaunchJob);
  Do([&] { measurer_->OnGenerationEnded({}, absl::AbortedError("lost")); });
  Do([&] {
    measurer_->OnReady();
    ASSERT_TRUE(placement_.Allocate({0, 1}, kHeapBytes * 15 / 16, MemoryClass::kTensor).ok());
  });
  MeasureAll();
  EXPECT_TRUE(Status().world().errors().empty()) << Status().world().errors(0);
}

TEST_F(MeasurerTest, WithoutAFolderAMeasurementRunsOnlyOnRequest) {
  Do([&] {
    Measurer::Parts parts = Parts();
    parts.folder.reset();
    measurer_ = std::make_unique<Measurer>(std::move(parts));
    measurer_->OnReady();
  });
  Advance(10 * kQuiet);
  EXPECT_TRUE(Take().empty());
  EXPECT_EQ(Status().state(), State::STATE_IDLE);
  Do([&] { measurer_->Measure(); });
  Advance(absl::Seconds(1));
  AnswerAll();
  EXPECT_EQ(Status().world().machine().version(), 1);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

// Jobs, tensors and plans of clients begin at 1.
TEST_F(MeasurerTest, IdsNeverCollideWithThoseOfClients) {
  Advance(kQuiet);
  const auto launch = AnswerUntil(v1::Command::kLaunchJob);
  EXPECT_GE(launch[0].command.launch_job().job_id(), uint64_t{1} << 62);
  EXPECT_GE(launch[0].command.launch_job().plan_id(), uint64_t{1} << 62);
}

}  // namespace
}  // namespace agmm
