// Jobs and other accesses to their tensors, which happen in the order of admission.
#include "absl/strings/match.h"
#include "tests/daemon/sequencer/scheduler_harness.h"

namespace agmm {
namespace {

class SchedulerTensorsTest : public SchedulerTest {
 protected:
  // A tensor with a name and contents.
  uint64_t Named(const std::string& name, const std::string& sharding, int64_t rows, int64_t cols) {
    const Answer<v1::BeginLeaseResponse> put = StartPut(name, sharding, rows, cols);
    const absl::StatusOr<v1::BeginLeaseResponse> begun = put.Get();
    EXPECT_TRUE(begun.ok()) << begun.status();
    EndWrite(begun->lease_id(), true);
    return begun->tensor().tensor_id();
  }
  Answer<v1::BeginLeaseResponse> StartPut(const std::string& name, const std::string& sharding,
                                          int64_t rows, int64_t cols) {
    v1::BeginLeaseRequest request;
    *request.mutable_put() = TensorRequest(name, sharding, rows, cols, MeshOf(2));
    Answer<v1::BeginLeaseResponse> begun;
    Do([&] { catalog_->BeginLease({}, request, begun.reply()); });
    for (const auto& [node, command] : Take(v1::Command::kPlaceTensor))
      Report(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
    return begun;
  }
  Answer<v1::BeginLeaseResponse> StartGet(uint64_t tensor) {
    v1::BeginLeaseRequest request;
    request.set_tensor_id(tensor);
    Answer<v1::BeginLeaseResponse> begun;
    Do([&] { catalog_->BeginLease({}, request, begun.reply()); });
    return begun;
  }
  absl::Status Delete(uint64_t tensor) {
    v1::DeleteTensorRequest request;
    request.set_tensor_id(tensor);
    Answer<v1::DeleteTensorResponse> deleted;
    Do([&] { catalog_->DeleteTensor({}, request, deleted.reply()); });
    return deleted.Get().status();
  }
  // Returns the offsets of A, B and C in the launch.
  std::vector<int64_t> OffsetsOfLaunch() {
    const auto launches = Take(v1::Command::kLaunchJob);
    EXPECT_FALSE(launches.empty());
    if (launches.empty()) return {};
    const auto& offsets = launches[0].command.launch_job().offset_bytes();
    return {offsets.begin(), offsets.end()};
  }
  int64_t OffsetOf(uint64_t tensor) {
    int64_t offset = -1;
    Do([&] { offset = catalog_->Find(tensor)->offset_bytes(); });
    return offset;
  }
  int64_t TensorBytes() {
    int64_t bytes = 0;
    Do([&] { bytes = placement_.used_bytes(0, MemoryClass::kTensor); });
    return bytes;
  }
  std::set<uint64_t> Dropped() {
    std::set<uint64_t> ids;
    for (const auto& [node, command] : Take(v1::Command::kDropTensor))
      ids.insert(command.drop_tensor().tensor_id());
    return ids;
  }
};

TEST_F(SchedulerTensorsTest, AGetAfterASubmitSeesItsC) {
  const Operands3 t = MakeOperands();
  const uint64_t job = SubmitOk(Request(t));
  const auto get = StartGet(t.c);
  AnswerPrepared();
  EXPECT_EQ(Launched(), std::vector{job});
  EXPECT_FALSE(get.has());
  DoneEverywhere(job);
  ASSERT_TRUE(get.Get().ok()) << get.Get().status();
  EXPECT_EQ(get.Get()->tensor().version(), 1u);
}

TEST_F(SchedulerTensorsTest, ACOfAnotherSessionIsNotWrittenByItsName) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.mutable_tensors(2)->set_name("Y");
  request.set_session_id("s1");
  const absl::StatusOr<v1::Job> mine = Submit(request);  // makes it
  ASSERT_TRUE(mine.ok()) << mine.status();
  for (const char* other : {"", "s2"}) {
    request.set_session_id(other);
    const absl::Status refused = Submit(request).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_TRUE(absl::StrContains(refused.message(), "\"Y\" belongs to another session"))
        << refused;
  }
  // A session may write a permanent tensor.
  Named("Z", "[M, N_x]", 64, 48);
  request.mutable_tensors(2)->set_name("Z");
  EXPECT_TRUE(Submit(request).ok());
}

TEST_F(SchedulerTensorsTest, ACOfAnotherShapeIsRefusedWithTheStepsThatHelp) {
  const Operands3 t = MakeOperands();
  Named("Y", "[M, N_x]", 32, 48);
  v1::SubmitJobRequest request = Request(t);
  request.mutable_tensors(2)->set_name("Y");
  const absl::Status refused = Submit(request).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_TRUE(absl::StrContains(refused.message(), "delete it, so that the job makes a new one"))
      << refused;
}

TEST_F(SchedulerTensorsTest, TwoJobsThatWriteOneCKeepTheirOrderAndAGetBetweenThemSeesTheFirst) {
  const Operands3 t = MakeOperands();
  const uint64_t first = SubmitOk(Request(t));
  const auto between = StartGet(t.c);
  const uint64_t second = SubmitOk(Request(t)), third = SubmitOk(Request(t));
  const auto after = StartGet(t.c);
  AnswerPrepared();
  EXPECT_EQ(Launched(), std::vector{first});
  DoneEverywhere(first);
  ASSERT_TRUE(between.Get().ok());
  EXPECT_EQ(between.Get()->tensor().version(), 1u);
  EXPECT_TRUE(Launched().empty());
  EndWrite(between.Get()->lease_id(), false);
  EXPECT_EQ(Launched(), (std::vector{second, third}));
  DoneEverywhere(second);
  EXPECT_FALSE(after.has());
  DoneEverywhere(third);
  EXPECT_EQ(after.Get()->tensor().version(), 3u);
}

TEST_F(SchedulerTensorsTest, APutOfTheSameSpecIsOrderedWithJobs) {
  Operands3 t = MakeOperands();
  t.a = Named("X", "[M_x, K]", 64, 32);
  const uint64_t before = SubmitOk(Request(t));
  const auto put = StartPut("X", "[M_x, K]", 64, 32);
  const uint64_t after = SubmitOk(Request(t));
  EXPECT_FALSE(put.has());
  AnswerPrepared();
  EXPECT_EQ(Launched(), std::vector{before});
  DoneEverywhere(before);
  ASSERT_TRUE(put.Get().ok());
  EXPECT_EQ(put.Get()->tensor().tensor_id(), t.a);
  EXPECT_TRUE(Launched().empty());
  EndWrite(put.Get()->lease_id(), true);
  EXPECT_EQ(Launched(), std::vector{after});
}

TEST_F(SchedulerTensorsTest,
       ASwapOfANameDoesNotDisturbQueuedJobsAndTheLastOfThemFreesTheOldTensor) {
  Operands3 t = MakeOperands();
  t.a = Named("X", "[M_x, K]", 64, 32);
  const int64_t offset = OffsetOf(t.a);
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(t));
  const uint64_t swapped = Named("X", "[M_x, K]", 128, 32);  // without waiting for them
  EXPECT_NE(swapped, t.a);
  const int64_t both = TensorBytes();
  AnswerPrepared();
  EXPECT_EQ(OffsetsOfLaunch()[0], offset);
  DoneEverywhere(first);
  EXPECT_TRUE(Dropped().empty());
  EXPECT_EQ(TensorBytes(), both);
  DoneEverywhere(second);
  EXPECT_EQ(State(second), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(Dropped(), std::set{t.a});
  EXPECT_EQ(TensorBytes(), both - 4096);
  // The name now belongs to the new tensor.
  v1::SubmitJobRequest request = Request({swapped, t.b, Create("[M, N_x]", 128, 48)});
  request.mutable_tensors(0)->set_name("X");
  const uint64_t third = SubmitOk(request);
  AnswerPrepared();
  EXPECT_EQ(OffsetsOfLaunch()[0], OffsetOf(swapped));
  DoneEverywhere(third);
}

TEST_F(SchedulerTensorsTest, ADeletedTensorIsFreedAfterItsLastJob) {
  const Operands3 t = MakeOperands();
  const int64_t before = TensorBytes();
  const uint64_t running = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_EQ(Launched(), std::vector{running});
  v1::SubmitJobRequest long_one = Request(t);
  long_one.set_repeat_count(100);  // not launched ahead
  const uint64_t queued = SubmitOk(long_one);
  for (uint64_t id : {t.a, t.b, t.c}) EXPECT_TRUE(Delete(id).ok());
  EXPECT_TRUE(absl::IsNotFound(Submit(Request(t)).status()));
  EXPECT_EQ(TensorBytes(), before);
  DoneEverywhere(running);
  EXPECT_TRUE(Dropped().empty());
  EXPECT_EQ(Launched(), std::vector{queued});
  DoneEverywhere(queued);
  EXPECT_EQ(State(running), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(State(queued), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(Dropped(), (std::set{t.a, t.b, t.c}));
  EXPECT_EQ(TensorBytes(), 0);
}

TEST_F(SchedulerTensorsTest, AnOpenPutOfAnotherSpecBringsNoContentsToTheOldTensor) {
  const Operands3 t = MakeOperands();
  Answer<v1::Tensor> created;
  Do([&] {
    catalog_->CreateTensor({}, TensorRequest("X", "[M_x, K]", 64, 32, MeshOf(2)), created.reply());
  });
  for (const auto& [node, command] : Take(v1::Command::kPlaceTensor))
    Report(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
  const auto put = StartPut("X", "[M_x, K]", 128, 32);
  const absl::StatusOr<v1::Job> job = Submit(Request({created.Get()->tensor_id(), t.b, t.c}));
  EXPECT_TRUE(absl::IsFailedPrecondition(job.status())) << job.status();
}

}  // namespace
}  // namespace agmm
