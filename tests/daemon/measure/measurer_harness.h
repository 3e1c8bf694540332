// A measurer over a fake world, for tests of its commands.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/measure/measurer.h"
#include "daemon/measure/preset.h"
#include "proto/convert/rpc_status.h"
#include "tests/daemon/fake_members.h"
#include "tests/daemon/manual_clock.h"
#include "tests/support/notification.h"
#include "tests/support/run_on_loop.h"
#include "tests/support/temp_folder.h"

namespace agmm {

inline constexpr int64_t kHeapBytes = 64 << 20;
inline constexpr absl::Duration kQuiet = absl::Seconds(2);

// A measurer over a fake world of two nodes with a rank each, whose answers the tests give.
class MeasurerTest : public ::testing::Test {
 protected:
  MeasurerTest() { Make(); }
  ~MeasurerTest() override {
    worker_.Stop();
    loop_.Stop();
  }

  Measurer::Parts Parts() {
    Measurer::Parts parts;
    parts.loop = &loop_;
    parts.worker = &worker_;
    parts.clock = &clock_;
    parts.members = &members_;
    parts.placement = &placement_;
    parts.metrics = &metrics_;
    parts.is_idle = [this] { return idle_; };
    parts.folder.emplace(folder_.path());
    parts.preset = preset_;
    parts.cluster = "test";
    parts.hosts = {"host-a", "host-b"};
    parts.transport = "a wire";
    parts.quiet = kQuiet;
    return parts;
  }
  // The measurer of a daemon that has just started, in a world that is ready.
  void Make() {
    Do([&] {
      measurer_ = std::make_unique<Measurer>(Parts());
      placement_.Reset({kHeapBytes, kHeapBytes});
      measurer_->OnReady();
    });
    Settle();
  }

  template <typename Task>
  void Do(Task task) {
    RunOnLoop(&loop_, std::move(task));
  }
  // Waits for the worker, and for the loop to handle what it has posted.
  void Settle() {
    Notification idle;
    Do([&] { worker_.Post([&] { idle.Notify(); }); });
    idle.Wait();
    Do([] {});
  }
  void Advance(absl::Duration by) {
    clock_.Advance(by);
    Notification due;
    loop_.PostAfter(absl::ZeroDuration(), [&] { due.Notify(); });
    Do([] {});
    due.Wait();
    Settle();
  }
  // Returns the commands since the last call.
  std::vector<FakeMembers::Sent> Take() {
    std::vector<FakeMembers::Sent> taken;
    Do([&] { taken = std::exchange(members_.sent, {}); });
    return taken;
  }
  v1::MachineStatus Status() {
    v1::MachineStatus status;
    Do([&] { status = measurer_->Status(); });
    return status;
  }
  int64_t TakenBytes() {
    int64_t bytes = 0;
    Do([&] { bytes = placement_.used_bytes(0, MemoryClass::kWorkspace); });
    return bytes;
  }

  // Returns a node's answer to a command; none to a command that has none.
  std::optional<v1::Report> AnswerTo(int node, const v1::Command& command) {
    v1::Report report;
    if (command.has_prepare_plan()) {
      report.mutable_plan_prepared()->set_plan_id(command.prepare_plan().plan_id());
    } else if (command.has_place_tensor()) {
      report.mutable_tensor_placed()->set_tensor_id(command.place_tensor().tensor().tensor_id());
    } else if (command.has_fill_shards()) {
      report.mutable_tensor_filled()->set_tensor_id(command.fill_shards().tensor_id());
    } else if (command.has_launch_job()) {
      // Each launch runs on two nodes.
      const double epoch_us = epoch_us_ * (launches_++ / 2 % 2 == 1 ? disturbed_ : 1);
      v1::LaunchDone& done = *report.mutable_launch_done();
      done.set_job_id(command.launch_job().job_id());
      if (!launch_error_.ok()) *done.mutable_error() = ToProto(launch_error_);
      v1::RankReport* rank = done.add_ranks();
      rank->set_rank(node);
      const int count = command.launch_job().epoch_count();
      for (int i = 0; i < count; ++i) rank->add_epoch_us(epoch_us);
      rank->set_start_unix_us(1e15);
      rank->set_epoch_start_unix_us(1e15 + (count - 1) * (epoch_us + between_us_));
    } else {
      return std::nullopt;
    }
    return report;
  }
  // Answers the commands sent since the last call, once. Returns false if there were none.
  bool Answer() {
    Settle();
    const std::vector<FakeMembers::Sent> sent = Take();
    for (const auto& [node, command] : sent) {
      if (command.has_release_plan()) ++released_;
      if (command.has_place_tensor()) ++placed_;
      if (command.has_drop_tensor()) ++dropped_;
      if (const auto report = AnswerTo(node, command); report.has_value())
        Do([&] { measurer_->OnReport(node, *report); });
    }
    Settle();
    return !sent.empty();
  }
  // Answers until the measurer has sent a command of this kind; leaves that unanswered.
  std::vector<FakeMembers::Sent> AnswerUntil(v1::Command::CommandCase kind) {
    for (int i = 0; i < 1000; ++i) {
      std::vector<FakeMembers::Sent> taken;
      Settle();
      Do([&] { taken = members_.Take(kind); });
      if (!taken.empty()) return taken;
      Answer();
    }
    ADD_FAILURE() << "no such command";
    return {};
  }
  void AnswerAll() {
    for (int i = 0; Answer(); ++i) ASSERT_LT(i, 3000);
    EXPECT_EQ(Status().state(), v1::MachineStatus::STATE_IDLE);
  }
  void MeasureAll() {
    Advance(kQuiet);
    AnswerAll();
  }
  // On the loop: ends the probe with an error.
  void FailPlan(const std::vector<FakeMembers::Sent>& prepare) {
    for (const auto& [node, command] : prepare) {
      v1::Report report = *AnswerTo(node, command);
      *report.mutable_plan_prepared()->mutable_error() = ToProto(absl::InternalError("no plan"));
      measurer_->OnReport(node, report);
    }
  }
  void Use(std::function<void()> call) {
    measurer_->MakeWay() ? call() : measurer_->Await(std::move(call));
  }
  // Passes a call that uses devices, and returns true if it has run.
  bool UseRuns() {
    auto ran = std::make_shared<bool>(false);
    Do([&] { Use([ran] { *ran = true; }); });
    return *ran;
  }

  const TempFolder folder_{"machines"};
  ManualClock clock_;
  Metrics metrics_;
  FakeMembers members_{2, 1, kHeapBytes};
  Placement placement_;
  bool idle_ = true;
  double epoch_us_ = 500, between_us_ = 0;  // an epoch, and the time to the next one
  double disturbed_ = 1;                    // the factor by which every second launch is slower
  absl::Status launch_error_;
  v1::Machine preset_ = measure::PresetFor("cpu");
  int launches_ = 0, released_ = 0, placed_ = 0, dropped_ = 0;
  std::unique_ptr<Measurer> measurer_;
  Loop loop_{"a test", &clock_}, worker_{"plans"};
};

}  // namespace agmm
