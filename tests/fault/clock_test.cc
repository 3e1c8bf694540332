// Sets the wall clock of every daemon and client while they work: displayed times follow it, and
// waits do not.
#include <signal.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/connect/tensor_transfer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "proto/convert/time.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr int kSide = 64;

class WallClock : public ::testing::Test {
 protected:
  WallClock() {
    WriteFile(file_, "0");
    world_.emplace(WorldOptions{
        .nodes = 2,
        .failpoints = "executor.delay=*",
        .environment = {{"LD_PRELOAD", AGMM_WALL_CLOCK}, {"AGMM_TEST_WALL_CLOCK", file_}}});
  }
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "a sanitizer's library must be the first that is loaded";
    ASSERT_NO_FATAL_FAILURE(world_->StartAll());
    WriteNpy(world_->Path("A.npy"), SmallIntegers(kSide, kSide, 1));
    for (const char* name : {"A", "B"}) {
      const Ran put = world_->Ctl(0, {"tensor", "put", name, world_->Path("A.npy"), "--sharding",
                                      name[0] == 'A' ? "[M_x, K]" : "[K, N_x]"});
      ASSERT_EQ(put.exit_code, 0) << put.err;
    }
  }

  // Sets the clock of all programs to the real time and `by`.
  void Set(absl::Duration by) {
    by_ = by;
    // Shorter than a block, so that no reader sees half of it.
    WriteFile(file_, absl::StrCat(absl::ToInt64Seconds(by)));
  }
  bool IsSet(absl::Time time) const {
    return absl::AbsDuration(time - absl::Now() - by_) < absl::Minutes(10);
  }
  // Waits until the sequencer reports the new time.
  ::testing::AssertionResult AwaitSet() {
    return Eventually([&] {
      const std::string name = absl::StrCat("t", ++tensors_);
      EXPECT_EQ(world_->Ctl(0, {"tensor", "put", name, world_->Path("A.npy")}).exit_code, 0);
      v1::TensorRef ref;
      ref.set_name(name);
      const auto tensor = world_->Connect(0)->GetTensor(ref);
      EXPECT_TRUE(tensor.ok()) << tensor.status();
      return tensor.ok() && IsSet(FromProto(tensor->create_time()));
    })
               ? ::testing::AssertionSuccess()
               : ::testing::AssertionFailure() << "the sequencer does not see the clock";
  }
  // A job that runs on both nodes until its timeout.
  std::unique_ptr<Process> StartLongJob(const std::string& timeout) {
    auto client = world_->StartCtl(1, {"job", "submit", "--bind", "A=A,B=B,C=C", "--repeat",
                                       "1000000", "--timeout", timeout, "--wait"});
    for (int node : {0, 1}) {
      EXPECT_TRUE(world_->WaitFor(node, "a launch", [&](const v1::GetStatusResponse& status) {
        return MetricOf(status, "runner_launches_total") > 0 || !client->Running();
      })) << client->err();
    }
    EXPECT_TRUE(client->Running()) << client->err();
    return client;
  }

  const TempFolder folder_{"clock"};
  const std::string file_ = folder_ / "seconds";
  std::optional<World> world_;
  absl::Duration by_;
  int tensors_ = 0;
};

TEST_F(WallClock, AJobEndsByItsDeadlineWhenTheClockGoesBack) {
  const auto client = StartLongJob("4s");
  Set(-absl::Hours(2));
  EXPECT_EQ(client->Wait(kPatience), 6) << client->out() << client->err();
  EXPECT_THAT(client->err(), HasSubstr("epochs done")) << "the nodes end it, not the sequencer";
  // The programs did see the new time.
  EXPECT_TRUE(AwaitSet());
}

TEST_F(WallClock, NothingEndsWhenTheClockGoesForward) {
  const auto job = StartLongJob("10m");
  const auto connection = world_->Connect(1);
  const auto session = connection->OpenSession();
  ASSERT_TRUE(session.ok()) << session.status();
  v1::BeginUpload begin;
  v1::CreateTensorRequest* create = begin.mutable_put();
  create->set_name("slow");
  create->set_session_id(*session);
  create->mutable_spec()->set_rows(kSide);
  create->mutable_spec()->set_cols(kSide);
  create->mutable_spec()->set_dtype(v1::DTYPE_F32);
  create->mutable_spec()->set_sharding("[M, K]");
  v1::MeshAxis* axis = create->mutable_spec()->mutable_mesh()->add_axes();
  axis->set_name("x");
  axis->set_size(2);
  const uint64_t generation = world_->Status(0).generation();
  // In the middle of an upload.
  const ReadFn read = [&](int64_t, int64_t bytes, char* out) {
    std::fill_n(out, bytes, '\1');
    Set(absl::Hours(1));
    return AwaitSet() ? absl::OkStatus() : absl::InternalError("the clock stands");
  };
  const auto tensor = Upload(connection.get(), begin, kSide * kSide * 4, read, {[](int64_t) {}},
                             {.deadline = Deadline::After(kPatience)});
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_TRUE(job->Running()) << job->err();
  for (int node : {0, 1}) {
    EXPECT_TRUE(world_->WaitReady(node));
    EXPECT_EQ(world_->Status(node).generation(), generation) << "a node was lost";
  }
  v1::TensorRef slow;
  slow.set_name("slow");
  EXPECT_TRUE(connection->GetTensor(slow).ok()) << "the session has ended";
  job->Signal(SIGINT);
  EXPECT_EQ(job->Wait(kPatience), 130) << job->err();
}

}  // namespace
}  // namespace agmm
