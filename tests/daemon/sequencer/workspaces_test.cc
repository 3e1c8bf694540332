// Workspaces: when they are lent, to which plans, and how room for them is made.
#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/sequencer/workspaces.h"
#include "gmock/gmock.h"
#include "kernels/base/reason.h"
#include "kernels/base/units.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "tests/daemon/sequencer/scheduler_harness.h"

namespace agmm {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

class Pool : public ::testing::Test {
 protected:
  static constexpr int64_t kKiB = 1 << 10;

  Pool() : pool_(&placement_, &metrics_) {
    placement_.Reset({1 << 20, 1 << 20, 1 << 20});
    placement_.set_reclaim([this](const std::vector<int>& ranks, int64_t bytes) {
      return pool_.Reclaim(ranks, bytes);
    });
  }
  WorkspacePool::Loan Take(int64_t bytes, uint64_t last = 0, std::vector<int> ranks = {0, 1}) {
    return pool_.Take(ranks, bytes, last).value();
  }
  // Takes a workspace and returns it.
  void Idle(std::vector<int> ranks, int64_t bytes) { pool_.Return(Take(bytes, 0, ranks).id); }
  int64_t Used(int rank) { return placement_.used_bytes(rank, MemoryClass::kWorkspace); }
  int64_t allocated() { return metrics_.counter("workspaces_allocated_total")->value(); }
  Placement placement_;
  Metrics metrics_;
  WorkspacePool pool_;
};

TEST_F(Pool, TakePrefersTheLastThenTheSmallestThenANewWorkspace) {
  const auto large = Take(64 * kKiB), small = Take(8 * kKiB), medium = Take(16 * kKiB);
  EXPECT_EQ(allocated(), 3);
  for (const auto& loan : {large, small, medium}) pool_.Return(loan.id);
  EXPECT_EQ(Take(4 * kKiB, large.id).id, large.id);
  EXPECT_EQ(Take(4 * kKiB, large.id).id, small.id) << "the one it had is lent";
  EXPECT_EQ(Take(12 * kKiB).id, medium.id);
  EXPECT_EQ(allocated(), 3);
  Take(4 * kKiB);
  EXPECT_EQ(allocated(), 4);
}

TEST_F(Pool, AWorkspaceOfOtherSizeOrRanksIsNotLent) {
  const auto small = Take(4 * kKiB), alone = Take(64 * kKiB, 0, {0});
  pool_.Return(small.id);
  pool_.Return(alone.id);
  const auto other = Take(8 * kKiB, small.id);
  EXPECT_NE(other.id, small.id);
  EXPECT_NE(other.id, alone.id);
}

TEST_F(Pool, ALargerWorkspaceReplacesIdleOnesThatAreTooSmall) {
  const auto lent = Take(4 * kKiB);
  Idle({0}, 4 * kKiB);
  for (int64_t kib = 8; kib <= 256; kib += 8) Idle({0, 1}, kib * kKiB);
  EXPECT_EQ(Used(1), (4 + 256) * kKiB);
  EXPECT_EQ(Used(0), (4 + 256 + 4) * kKiB) << "that of other ranks is theirs";
  pool_.Return(lent.id);
}

TEST_F(Pool, AFullHeapReclaimsOnlyIdleWorkspaces) {
  const auto lent = Take(256 * kKiB);
  Idle({0, 1}, 512 * kKiB);
  EXPECT_EQ(pool_.Take({0, 1}, 900 * kKiB, 0).status().code(), Code::kResourceExhausted);
  EXPECT_FALSE(placement_.Allocate({0, 1}, 900 * kKiB, MemoryClass::kTensor).ok());
  EXPECT_EQ(Used(0), 768 * kKiB) << "what would not do is not given up";
  EXPECT_TRUE(pool_.CheckRoom({0, 1}, 900 * kKiB).ok());
  EXPECT_EQ(pool_.CheckRoom({0, 1}, 1025 * kKiB).code(), Code::kResourceExhausted);
  pool_.Return(lent.id);
  EXPECT_TRUE(pool_.Take({0, 1}, 900 * kKiB, lent.id).ok());
  pool_.Forget();
  EXPECT_EQ(placement_.free_bytes(0), 1 << 20);
}

TEST_F(Pool, ReclaimKeepsWorkspacesOnOtherRanks) {
  Idle({2}, 256 * kKiB);  // the oldest
  Idle({0, 1}, 256 * kKiB);
  ASSERT_TRUE(placement_.Allocate({0}, 900 * kKiB, MemoryClass::kTensor).ok());
  EXPECT_EQ(Used(0), 0);
  EXPECT_EQ(Used(2), 256 * kKiB);
}

TEST_F(Pool, ReclaimFreesTheOldestWorkspaceThatHelps) {
  const auto older = Take(256 * kKiB, 0, {0, 1}), later = Take(256 * kKiB, 0, {0, 2});
  pool_.Return(older.id);
  pool_.Return(later.id);
  ASSERT_TRUE(placement_.Allocate({0}, 512 * kKiB, MemoryClass::kTensor).ok());
  // Either one would make room.
  ASSERT_TRUE(placement_.Allocate({0}, 200 * kKiB, MemoryClass::kTensor).ok());
  EXPECT_EQ(Used(1), 0);
  EXPECT_EQ(Used(2), 256 * kKiB);
}

TEST_F(Pool, ReclaimSkipsAnOlderWorkspaceThatDoesNotHelp) {
  Idle({0, 1}, 128 * kKiB);
  const int64_t between = placement_.Allocate({0}, 4 * kKiB, MemoryClass::kTensor).value();
  Idle({0, 2}, 256 * kKiB);
  EXPECT_GT(between, 0);
  // After the tensor, only the later workspace makes enough room.
  ASSERT_TRUE(placement_.Allocate({0}, 800 * kKiB, MemoryClass::kTensor).ok());
  EXPECT_EQ(Used(1), 128 * kKiB);
  EXPECT_EQ(Used(2), 0);
}

class Lent : public SchedulerTest {
 protected:
  Lent() : SchedulerTest(64 << 20) {}

  // Returns the workspace offsets of the jobs launched since the last call.
  std::vector<int64_t> Offsets() {
    std::vector<int64_t> offsets;
    for (const auto& [node, command] : Take(v1::Command::kLaunchJob))
      if (node == 0) offsets.push_back(command.launch_job().workspace_offset_bytes());
    return offsets;
  }
  // Operands of m x 32 and 32 x 48, and the job that multiplies them in a ring.
  v1::SubmitJobRequest Ring(int64_t m) {
    v1::SubmitJobRequest request = Request(MakeOperands(m));
    request.mutable_options()->set_algorithm("ring");
    request.mutable_options()->set_chunk_count(1);
    return request;
  }
  // Returns its bytes in both heaps.
  static int64_t NeedOf(int64_t m) {
    const Problem problem = *ParseProblem(kSpec, *ParseMesh("x=2"), {m, 48, 32}, DType::kF32);
    return RoundUp(Plan(problem, Topology{{0, 1}}, {"ring", 1})->workspace_bytes, 4096);
  }
  // Creates a tensor that takes all but `bytes` of both heaps.
  uint64_t FillAllBut(int64_t bytes) {
    int64_t free = 0;
    Do([&] { free = placement_.free_bytes(0); });
    return Create("[M, K]", (free - bytes) / 4096, 1024);
  }
};

TEST_F(Lent, FiftyQueuedShapesUseOnlyTheLaunchedJobsMemory) {
  constexpr int kJobs = 50;
  std::vector<v1::SubmitJobRequest> requests;
  std::vector<int64_t> needs;
  int64_t all = 0;
  for (int i = 0; i < kJobs; ++i) {
    const int64_t m = 1024 + 64 * (i * 7 % kJobs);
    requests.push_back(Ring(m));
    needs.push_back(NeedOf(m));
    all += needs.back();
  }
  const int64_t largest = *std::max_element(needs.begin(), needs.end());
  FillAllBut(2 * largest);
  ASSERT_GT(all, 20 * largest);
  std::vector<uint64_t> jobs;
  for (const v1::SubmitJobRequest& request : requests) jobs.push_back(SubmitOk(request));
  EXPECT_EQ(WorkspaceBytes(), 0) << "nothing is launched yet";
  AnswerPrepared();
  std::vector<uint64_t> launched;
  for (int ended = 0; ended < kJobs; ++ended) {
    for (uint64_t id : Launched()) launched.push_back(id);
    ASSERT_GT(launched.size(), ended) << "job " << jobs[ended] << " waits forever";
    EXPECT_LE(launched.size(), ended + 2u);
    EXPECT_LE(WorkspaceBytes(), 2 * largest);
    DoneEverywhere(jobs[ended]);
    EXPECT_EQ(State(jobs[ended]), v1::Job::STATE_SUCCEEDED);
  }
  EXPECT_EQ(launched, jobs) << "in the order of admission";
}

TEST_F(Lent, AJobWaitsForMemoryOfJobsThatWillEnd) {
  const v1::SubmitJobRequest small = Ring(1024), large = Ring(2048), behind = Ring(64);
  FillAllBut(NeedOf(2048));
  const uint64_t running = SubmitOk(small);
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(running));
  const uint64_t waiting = SubmitOk(large), last = SubmitOk(behind);
  AnswerPrepared();
  EXPECT_THAT(Launched(), IsEmpty()) << "nothing overtakes it";
  DoneEverywhere(running);
  EXPECT_THAT(Launched(), ElementsAre(waiting));
  DoneEverywhere(waiting);
  EXPECT_THAT(Launched(), ElementsAre(last));
}

TEST_F(Lent, AQueuedJobsDeadlineSaysThatItWaitedForRoom) {
  v1::SubmitJobRequest large = Ring(2048);
  const v1::SubmitJobRequest small = Ring(1024);
  FillAllBut(NeedOf(2048));
  const uint64_t running = SubmitOk(small);
  AnswerPrepared();
  large.mutable_timeout()->set_seconds(10);
  const Answer<v1::Job> late = StartWait(SubmitOk(large));
  AnswerPrepared();
  Advance(absl::Seconds(10));
  EXPECT_THAT(late.Get()->error().message(),
              HasSubstr(absl::StrCat("memory for its workspace, which job ", running)));
}

TEST_F(Lent, AWorkspaceThatNeverFitsIsRefusedWithItsSize) {
  const v1::SubmitJobRequest small = Ring(1024), large = Ring(2048);
  FillAllBut(NeedOf(2048) - 4096);
  const uint64_t running = SubmitOk(small);
  AnswerPrepared();
  const absl::Status refused = Submit(large).status();
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(ReasonOf(refused), kReasonHeapFull);
  const std::string free = FormatBytes(NeedOf(2048) - 4096);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("even if no other job held one: "),
                    HasSubstr("were requested on each of ranks 0,1"),
                    HasSubstr(absl::StrCat("has ", free, " free of 64 MiB")),
                    HasSubstr(absl::StrCat("free on all of them is ", free)),
                    HasSubstr("rank 0 holds tensors "), HasSubstr("workspaces 0 B")));
  DoneEverywhere(running);
}

TEST_F(Lent, AJobIsRefusedIfItsOwnNewCTakesTheRoom) {
  v1::SubmitJobRequest request = Ring(4096);
  Warm(request);
  const uint64_t as_large_as_c = Create("[M, K]", 4096 * 128 / 4096, 1024);
  FillAllBut(0);
  Create("[M, K]", NeedOf(4096) / 4096, 1024);
  ASSERT_EQ(WorkspaceBytes(), 0);
  v1::DeleteTensorRequest gone;
  gone.set_tensor_id(as_large_as_c);
  Answer<v1::DeleteTensorResponse> deleted;
  Do([&] { catalog_->DeleteTensor({}, gone, deleted.reply()); });
  v1::SubmitJobRequest with_new_c = request;
  with_new_c.mutable_tensors(2)->set_name("Y");
  EXPECT_EQ(Submit(with_new_c).status().code(), Code::kResourceExhausted);
  for (const auto& [node, command] : Take(v1::Command::kPlaceTensor))
    Report(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
  Do([&] { EXPECT_FALSE(catalog_->Resolve(with_new_c.tensors(2)).ok()); });
  EXPECT_TRUE(Submit(request).ok()) << "the refused job's C is deleted";
}

TEST_F(Lent, ATensorThatTookTheRoomFailsTheJobAtItsLaunch) {
  const v1::SubmitJobRequest small = Ring(1024), large = Ring(2048);
  const uint64_t running = SubmitOk(small);
  AnswerPrepared();
  const uint64_t queued = SubmitOk(large);
  FillAllBut(0);
  EXPECT_EQ(State(queued), v1::Job::STATE_QUEUED);
  AnswerPrepared();
  EXPECT_EQ(State(queued), v1::Job::STATE_QUEUED) << "a launched job may still release enough";
  DoneEverywhere(running);
  EXPECT_EQ(State(running), v1::Job::STATE_SUCCEEDED);
  const v1::Job failed = *Get(queued);
  EXPECT_EQ(failed.state(), v1::Job::STATE_FAILED);
  EXPECT_EQ(failed.error().code(), static_cast<int>(Code::kResourceExhausted));
  EXPECT_THAT(failed.error().message(),
              HasSubstr("were requested on each of ranks 0,1; rank 0 has"));
  EXPECT_EQ(StateOf(large.tensors(2).tensor_id()), v1::Tensor::STATE_EMPTY);
}

TEST_F(Lent, TwoPlansAtATimeHaveWorkspacesOfTheirOwn) {
  const Operands3 large = MakeOperands(64), small = MakeOperands(32);
  Warm(Request(large));
  Offsets();
  const uint64_t first = SubmitOk(Request(small));  // uses the large job's workspace
  const uint64_t second = SubmitOk(Request(large));
  AnswerPrepared();
  const std::vector<int64_t> offsets = Offsets();
  ASSERT_EQ(offsets.size(), 2u);
  EXPECT_NE(offsets[0], offsets[1]);
  EXPECT_EQ(Metric("workspaces_allocated_total"), 2);
  DoneEverywhere(first);
  DoneEverywhere(second);
}

TEST_F(Lent, AWorkspaceChangesOnlyWhenNothingOfItsPlanIsLaunched) {
  const Operands3 t = MakeOperands(64), small = MakeOperands(32);
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(t));
  AnswerPrepared();
  DoneEverywhere(first);
  const uint64_t other = SubmitOk(Request(small)), third = SubmitOk(Request(t));
  AnswerPrepared();
  const std::vector<int64_t> offsets = Offsets();
  ASSERT_EQ(offsets.size(), 4u);
  // The third job does not wait for the plan of the other.
  EXPECT_EQ(offsets[0], offsets[1]);
  EXPECT_EQ(offsets[0], offsets[2]);
  EXPECT_NE(offsets[0], offsets[3]);
  for (uint64_t id : {second, third, other}) DoneEverywhere(id);
}

TEST_F(Lent, AFailedPlansWorkspaceIsLentAgainOnlyOnceAllRanksHaveReported) {
  const Operands3 t = MakeOperands();
  const uint64_t first = SubmitOk(Request(t));
  AnswerPrepared();
  Done(1, first, absl::DataLossError("the cause"));
  v1::SubmitJobRequest ring = Request(MakeOperands());
  ring.mutable_options()->set_algorithm("ring");
  const uint64_t second = SubmitOk(ring);
  AnswerPrepared();
  const std::vector<int64_t> offsets = Offsets();
  ASSERT_EQ(offsets.size(), 2u);
  EXPECT_NE(offsets[0], offsets[1]);
  Done(0, first, absl::AbortedError("cancelled"));
  DoneEverywhere(second);
  SubmitOk(ring);
  EXPECT_EQ(Metric("workspaces_allocated_total"), 2);
}

}  // namespace
}  // namespace agmm
