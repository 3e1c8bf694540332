// Jobs through real daemons: watches, and the time until a cancelled or late job ends.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "agmm/v1/job.grpc.pb.h"
#include "kernels/base/reason.h"
#include "proto/convert/grpc_call.h"
#include "proto/convert/rpc_status.h"
#include "tests/daemon/world_harness.h"
#include "tests/support/armed.h"

namespace agmm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

int Threads() {
  int count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  while (const dirent* entry = readdir(tasks)) count += entry->d_name[0] != '.';
  closedir(tasks);
  return count;
}

// The events of one watch, received without a thread.
class Watch final : public grpc::ClientReadReactor<v1::WatchJobResponse> {
 public:
  Watch(v1::JobService::Stub* stub, uint64_t job, int64_t after) {
    request_.set_job_id(job);
    request_.set_after_event(after);
    stub->async()->WatchJob(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  ~Watch() override {
    context_.TryCancel();
    End().IgnoreError();
  }
  void OnReadDone(bool ok) override {
    std::lock_guard lock(mutex_);
    if (!ok) return;
    if (response_.has_event()) events_.push_back(response_.event().number());
    if (response_.has_job()) job_ = response_.job();
    changed_.notify_all();
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    status_ = FromGrpc(status);
    done_ = true;
    changed_.notify_all();
  }
  bool WaitEvents(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, absl::ToChronoSeconds(kPatience), [&] {
      return events_.size() >= count || done_;
    }) && events_.size() >= count;
  }
  absl::Status End() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, absl::ToChronoSeconds(kPatience), [&] { return done_; }))
      return absl::UnknownError("the watch did not end");
    return status_;
  }
  const std::vector<int64_t>& events() const { return events_; }  // once ended
  const v1::Job& job() const { return job_; }

 private:
  grpc::ClientContext context_;
  v1::WatchJobRequest request_;
  v1::WatchJobResponse response_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> events_;
  v1::Job job_;
  absl::Status status_;
  bool done_ = false;
};

class JobServiceTest : public testing::Test {
 protected:
  JobServiceTest() {
    for (int node : {0, 1}) EXPECT_TRUE(world_.Start(node).ok());
    world_.WaitReady(1);
    for (int node : {0, 1}) {
      channels_[node] = world_.Channel(node);
      jobs_[node] = v1::JobService::NewStub(channels_[node]);
    }
    Fill("A", "[M_x, K]");
    Fill("B", "[K, N_x]");
  }
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_wait_for_ready(true);
    context->set_deadline(ToGrpc(Deadline::After(kPatience)));
  }
  void Fill(const std::string& name, const std::string& sharding) {
    v1::FillTensorRequest request;
    v1::CreateTensorRequest* put = request.mutable_put();
    put->set_name(name);
    put->mutable_spec()->set_sharding(sharding);
    put->mutable_spec()->set_rows(64);
    put->mutable_spec()->set_cols(64);
    put->mutable_spec()->set_dtype(v1::DTYPE_F32);
    SetMesh(put->mutable_spec()->mutable_mesh());
    request.mutable_fill()->set_kind(v1::Fill::KIND_INTEGERS);
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::Tensor tensor;
    const grpc::Status status =
        v1::TensorService::NewStub(channels_[1])->FillTensor(&context, request, &tensor);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  static void SetMesh(v1::Mesh* mesh) {
    v1::MeshAxis* axis = mesh->add_axes();
    axis->set_name("x");
    axis->set_size(2);
  }
  v1::SubmitJobRequest Request(const std::string& c, const std::string& b = "B") {
    v1::SubmitJobRequest request;
    request.set_spec("A[M_x, K] * B[K, N_x] -> C[M, N_x]");
    SetMesh(request.mutable_mesh());
    for (const std::string& name : {std::string("A"), b, c}) request.add_tensors()->set_name(name);
    return request;
  }
  uint64_t Submit(const v1::SubmitJobRequest& request) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::Job job;
    const grpc::Status status = jobs_[1]->SubmitJob(&context, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job.job_id();
  }
  v1::Job Get(uint64_t id) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetJobRequest request;
    request.set_job_id(id);
    v1::Job job;
    EXPECT_TRUE(jobs_[1]->GetJob(&context, request, &job).ok());
    return job;
  }
  v1::Job Wait(uint64_t id) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::WaitJobRequest request;
    request.set_job_id(id);
    v1::Job job;
    const grpc::Status status = jobs_[1]->WaitJob(&context, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return job;
  }
  void Cancel(uint64_t id) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::CancelJobRequest request;
    request.set_job_id(id);
    v1::Job job;
    EXPECT_TRUE(jobs_[1]->CancelJob(&context, request, &job).ok());
  }
  void WaitRunning(uint64_t id) {
    EXPECT_TRUE(Eventually([&] { return Get(id).state() == v1::Job::STATE_RUNNING; }));
  }
  void WaitLaunchedAhead(uint64_t id) {
    EXPECT_TRUE(Eventually([&] { return Get(id).events_size() == 2; }));
    EXPECT_EQ(Get(id).state(), v1::Job::STATE_QUEUED);
  }
  // Cancels the job and waits until it is cancelled.
  void ExpectCancelled(uint64_t id, const char* what) {
    const int64_t begin_ns = MonotonicNanos();
    Cancel(id);
    const v1::Job job = Wait(id);
    std::printf("cancelled while %s: %s\n", what,
                absl::FormatDuration(absl::Nanoseconds(MonotonicNanos() - begin_ns)).c_str());
    EXPECT_EQ(job.state(), v1::Job::STATE_CANCELLED) << what;
    EXPECT_EQ(ReasonOf(FromProto(job.error())), kReasonCancelled) << what;
  }
  void ExpectTimedOut(uint64_t id, Deadline due, const char* what) {
    const v1::Job job = Wait(id);
    std::printf("deadline while %s: %s late\n", what, absl::FormatDuration(-due.Left()).c_str());
    EXPECT_EQ(job.state(), v1::Job::STATE_FAILED) << what;
    EXPECT_EQ(ReasonOf(FromProto(job.error())), kReasonDeadline) << what;
  }
  v1::SubmitJobRequest Timed(v1::SubmitJobRequest request, int ms = 300) {
    request.mutable_timeout()->set_nanos(ms * 1'000'000);
    return request;
  }
  void ExpectJobsRun() {
    const v1::Job job = Wait(Submit(Request("Y")));
    EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.error().message();
  }

  TestWorld world_{2};
  std::shared_ptr<grpc::Channel> channels_[2];
  std::unique_ptr<v1::JobService::Stub> jobs_[2];
};

TEST_F(JobServiceTest, AJobMayHaveOperandsThatNoOperationUses) {
  const Armed spare("admission.spare_operands");
  Fill("D", "[P, Q_x]");
  v1::SubmitJobRequest request = Request("Y");
  request.clear_tensors();
  for (const auto& [operand, tensor] : {std::pair("A", "A"), {"B", "B"}, {"C", "Z"}, {"D", "D"}}) {
    v1::OperandTensor* bound = request.add_operands();
    bound->set_name(operand);
    bound->mutable_tensor()->set_name(tensor);
  }
  const v1::Job four = Wait(Submit(request)), three = Wait(Submit(Request("Y")));
  EXPECT_EQ(four.state(), v1::Job::STATE_SUCCEEDED) << four.error().message();
  EXPECT_EQ(four.operands_size(), 4);
  EXPECT_EQ(three.operands_size(), 3);
  EXPECT_NE(four.plan_hash(), three.plan_hash());
}

TEST_F(JobServiceTest, AThousandWatchersSeeEveryEventAndCostNoThreads) {
  ExpectJobsRun();
  auto held = std::make_unique<Armed>("executor.hold_rank_1");
  const uint64_t id = Submit(Request("Y"));
  WaitRunning(id);
  const auto watch = [&](int count) {
    std::vector<std::unique_ptr<Watch>> watches;
    for (int i = 0; i < count; ++i)
      watches.push_back(std::make_unique<Watch>(jobs_[i % 2].get(), id, 0));
    for (const auto& one : watches) EXPECT_TRUE(one->WaitEvents(2));
    return watches;
  };
  const auto few = watch(20);
  const int before = Threads();
  const auto many = watch(1000);
  // gRPC's pool may always grow by a thread or two.
  EXPECT_LE(Threads(), before + 10);
  held.reset();
  // This does not wake a held rank.
  Cancel(id);
  for (const auto& one : many) {
    ASSERT_TRUE(one->End().ok()) << one->End();
    ASSERT_THAT(one->events(), ElementsAre(1, 2, 3));
    ASSERT_EQ(one->job().job_id(), id);
    ASSERT_EQ(one->job().events_size(), 3);
  }
}

TEST_F(JobServiceTest, AWatchResumesAfterAnEventThroughAnyDaemon) {
  const uint64_t id = Submit(Request("Y"));
  Wait(id);
  for (int node : {0, 1}) {
    Watch all(jobs_[node].get(), id, 0), later(jobs_[node].get(), id, 2),
        end(jobs_[node].get(), id, 3), unknown(jobs_[node].get(), id + 1, 0);
    EXPECT_TRUE(all.End().ok()) << all.End();
    EXPECT_THAT(all.events(), ElementsAre(1, 2, 3));
    EXPECT_TRUE(later.End().ok());
    EXPECT_THAT(later.events(), ElementsAre(3));
    EXPECT_EQ(later.job().state(), v1::Job::STATE_SUCCEEDED);
    EXPECT_TRUE(end.End().ok());
    EXPECT_EQ(end.job().state(), v1::Job::STATE_SUCCEEDED);
    EXPECT_EQ(unknown.End().code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(JobServiceTest, ALostSequencerEndsTheWatchWithPeerLost) {
  Armed held("executor.hold_rank_1");
  const uint64_t id = Submit(Request("Y"));
  Watch watch(jobs_[1].get(), id, 0);
  EXPECT_TRUE(watch.WaitEvents(1));
  world_.Stop(0);
  // A daemon that stops cleanly may still have sent the job's end.
  absl::Status status = watch.End();
  if (status.ok()) status = FromProto(watch.job().error());
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
  EXPECT_EQ(ReasonOf(status), kReasonPeerLost);
}

TEST_F(JobServiceTest, ACancelReachesAJobInEveryState) {
  ExpectJobsRun();
  {
    Armed here("executor.hold_rank_0"), there("executor.hold_rank_1");
    const uint64_t running = Submit(Request("Y"));
    WaitRunning(running);
    const uint64_t behind = Submit(Request("Y"));
    WaitLaunchedAhead(behind);
    const uint64_t queued = Submit(Request("Z", "Y"));
    EXPECT_EQ(Get(queued).state(), v1::Job::STATE_QUEUED);
    ExpectCancelled(queued, "queued");
    ExpectCancelled(behind, "launched behind another");
    ExpectCancelled(running, "running");
  }
  ExpectJobsRun();
  {
    Armed peer("executor.hold_rank_1");
    const uint64_t waiting = Submit(Request("Y"));
    WaitRunning(waiting);
    ExpectCancelled(waiting, "waiting on a peer");
  }
  ExpectJobsRun();
}

TEST_F(JobServiceTest, ADeadlineReachesAJobInEveryState) {
  ExpectJobsRun();
  {
    Armed here("executor.hold_rank_0"), there("executor.hold_rank_1");
    // The running job must outlive the job that waits for its Y, which would otherwise fail for
    // lack of Y.
    const Deadline soon = Deadline::After(absl::Milliseconds(300));
    const Deadline later = Deadline::After(absl::Milliseconds(900));
    const uint64_t running = Submit(Timed(Request("Y"), 900));
    const uint64_t queued = Submit(Timed(Request("Z", "Y")));
    ExpectTimedOut(queued, soon, "queued");
    ExpectTimedOut(running, later, "running");
  }
  ExpectJobsRun();
  {
    Armed peer("executor.hold_rank_1");
    const Deadline due = Deadline::After(absl::Milliseconds(300));
    ExpectTimedOut(Submit(Timed(Request("Y"))), due, "waiting on a peer");
  }
  ExpectJobsRun();
}

TEST_F(JobServiceTest, ASubmitByNamesGivesCAndARecord) {
  const v1::Job job = Wait(Submit(Request("new")));
  EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED);
  EXPECT_THAT(job.engine(), HasSubstr("cpu: "));
  EXPECT_THAT(job.transport(), HasSubstr("ucx "));
  EXPECT_GT(job.figures().time_us(), 0);
  EXPECT_GT(job.figures().tflops(), 0);
  ASSERT_EQ(job.ranks_size(), 2);
  for (const v1::RankReport& rank : job.ranks()) {
    EXPECT_NEAR(rank.start_unix_us(), absl::ToUnixMicros(absl::Now()), 600e6);
    EXPECT_EQ(rank.start_unix_us(), rank.epoch_start_unix_us());
  }
}

TEST_F(JobServiceTest, EpochsLieBetweenTheFirstBeginAndTheLast) {
  v1::SubmitJobRequest request = Request("in a row");
  request.set_repeat_count(5);
  const v1::Job job = Wait(Submit(request));
  ASSERT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.error().message();
  ASSERT_EQ(job.ranks_size(), 2);
  for (const v1::RankReport& rank : job.ranks()) {
    ASSERT_EQ(rank.epoch_us_size(), 5);
    const double first_four =
        std::accumulate(rank.epoch_us().begin(), rank.epoch_us().end() - 1, 0.0);
    EXPECT_GE(rank.epoch_start_unix_us() - rank.start_unix_us(), first_four - 1)
        << "a microsecond for rounding";
  }
}

}  // namespace
}  // namespace agmm
