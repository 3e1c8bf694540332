// A scheduler with its loop, catalog and placement, over a fake world that tests answer for.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "daemon/sequencer/scheduler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"
#include "proto/convert/rpc_status.h"
#include "tests/daemon/fake_members.h"
#include "tests/daemon/manual_clock.h"
#include "tests/support/notification.h"
#include "tests/support/patience.h"
#include "tests/support/run_on_loop.h"

namespace agmm {

// An answer that may not have arrived yet.
template <typename T>
class Answer {
 public:
  Reply<T> reply() {
    return [state = state_](absl::StatusOr<T> value) {
      std::lock_guard lock(state->mutex);
      EXPECT_FALSE(state->value.has_value()) << "answered twice";
      state->value = std::move(value);
      state->came.notify_all();
    };
  }
  bool has() const {
    std::lock_guard lock(state_->mutex);
    return state_->value.has_value();
  }
  absl::StatusOr<T> Get() const {
    std::unique_lock lock(state_->mutex);
    if (!state_->came.wait_for(lock, absl::ToChronoSeconds(kPatience),
                               [&] { return state_->value.has_value(); }))
      return absl::UnknownError("no answer came");
    return *state_->value;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable came;
    std::optional<absl::StatusOr<T>> value;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

inline std::shared_ptr<const Machine> MeasuredMachine(int64_t version, double latency_ns = 10'000) {
  Machine machine;
  machine.name = "measured";
  machine.version = version;
  machine.within.rates = machine.staged.rates = {10, 20, 1000};
  machine.between.rates = {1, 2, latency_ns};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    machine.device.gemm.push_back({dtype, 1e9, 100});
  machine.device.memory = 10;
  return std::make_shared<const Machine>(machine);
}

class SchedulerTest : public ::testing::Test {
 protected:
  static constexpr char kSpec[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";

  // Two nodes with one rank each.
  explicit SchedulerTest(int64_t heap_bytes = 4 << 20) : members_(2, 1, heap_bytes) {
    catalog_ = std::make_unique<Catalog>(&members_, &placement_);
    scheduler_ = std::make_unique<Scheduler>(Parts());
    Do([&] {
      catalog_->OnReady();
      scheduler_->OnReady();
    });
  }
  ~SchedulerTest() override { loop_.Stop(); }

  Scheduler::Parts Parts() {
    Scheduler::Parts parts;
    parts.loop = &loop_;
    parts.clock = &clock_;
    parts.planners = {&planner_, &large_planner_};
    parts.plan_cache_bytes = 1000;
    parts.members = &members_;
    parts.placement = &placement_;
    parts.catalog = catalog_.get();
    parts.metrics = &metrics_;
    parts.transport = "a wire";
    parts.drain_limit = absl::Milliseconds(50);
    parts.basis = [this] { return PlanBasis{machine_, tuning_}; };
    return parts;
  }

  template <typename Task>
  void Do(Task task) {
    RunOnLoop(&loop_, std::move(task));
  }
  // Moves the clock, and runs all timers that are due then: the last of them is the one posted
  // here.
  void Advance(absl::Duration by) {
    clock_.Advance(by);
    Notification due;
    loop_.PostAfter(absl::ZeroDuration(), [&] { due.Notify(); });
    Do([] {});
    due.Wait();
    Do([] {});
  }
  // Waits for the planner to finish its work, and for the loop to handle that.
  void Settle() {
    Notification idle;
    Do([&] { planner_.Post([&] { idle.Notify(); }); });
    idle.Wait();
    Do([] {});
  }
  void Report(int node, const v1::Report& report) {
    Do([&] {
      catalog_->OnReport(node, report);
      scheduler_->OnReport(node, report);
    });
  }
  std::vector<FakeMembers::Sent> Take(v1::Command::CommandCase kind) {
    std::vector<FakeMembers::Sent> taken;
    Do([&] { taken = members_.Take(kind); });
    return taken;
  }

  uint64_t Create(const std::string& sharding, int64_t rows, int64_t cols,
                  const v1::Mesh& mesh = MeshOf(2), v1::DType dtype = v1::DTYPE_F32) {
    Answer<v1::Tensor> created;
    v1::CreateTensorRequest request = TensorRequest("", sharding, rows, cols, mesh);
    request.mutable_spec()->set_dtype(dtype);
    Do([&] { catalog_->CreateTensor({}, request, created.reply()); });
    for (const auto& [node, command] : Take(v1::Command::kPlaceTensor))
      Report(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
    return created.Get()->tensor_id();
  }
  uint64_t BeginWrite(uint64_t tensor) {
    Answer<v1::BeginLeaseResponse> begun;
    v1::BeginLeaseRequest request;
    request.set_tensor_id(tensor);
    request.set_write(true);
    Do([&] { catalog_->BeginLease({}, request, begun.reply()); });
    return begun.Get()->lease_id();
  }
  void EndWrite(uint64_t access, bool commit) {
    Answer<v1::EndLeaseResponse> ended;
    v1::EndLeaseRequest request;
    request.set_lease_id(access);
    request.set_commit(commit);
    Do([&] { catalog_->EndLease({}, request, ended.reply()); });
    EXPECT_TRUE(ended.Get().ok());
  }
  uint64_t Ready(const std::string& sharding, int64_t rows, int64_t cols,
                 const v1::Mesh& mesh = MeshOf(2), v1::DType dtype = v1::DTYPE_F32) {
    const uint64_t tensor = Create(sharding, rows, cols, mesh, dtype);
    EndWrite(BeginWrite(tensor), true);
    return tensor;
  }
  v1::Tensor::State StateOf(uint64_t tensor) {
    v1::Tensor::State state = v1::Tensor::STATE_UNSPECIFIED;
    Do([&] {
      const auto found = catalog_->Find(tensor);
      if (found.ok()) state = found->state();
    });
    return state;
  }

  struct Operands3 {
    uint64_t a, b, c;
  };
  Operands3 MakeOperands(int64_t m = 64, const v1::Mesh& mesh = MeshOf(2)) {
    return {Ready("[M_x, K]", m, 32, mesh), Ready("[K, N_x]", 32, 48, mesh),
            Create("[M, N_x]", m, 48, mesh)};
  }
  static v1::SubmitJobRequest Request(const Operands3& t, const v1::Mesh& mesh = MeshOf(2)) {
    v1::SubmitJobRequest request;
    request.set_spec(kSpec);
    *request.mutable_mesh() = mesh;
    for (uint64_t id : {t.a, t.b, t.c}) request.add_tensors()->set_tensor_id(id);
    return request;
  }
  absl::StatusOr<v1::Job> Submit(const v1::SubmitJobRequest& request,
                                 const std::string& principal = "uid:7") {
    Answer<v1::Job> job;
    CallContext ctx;
    ctx.principal = principal;
    Do([&] { scheduler_->SubmitJob(ctx, request, job.reply()); });
    return job.Get();
  }
  uint64_t SubmitOk(const v1::SubmitJobRequest& request) {
    const absl::StatusOr<v1::Job> job = Submit(request);
    EXPECT_TRUE(job.ok()) << job.status();
    return job.ok() ? job->job_id() : 0;
  }
  absl::StatusOr<v1::Job> Get(uint64_t id) {
    Answer<v1::Job> job;
    v1::GetJobRequest request;
    request.set_job_id(id);
    Do([&] { scheduler_->GetJob({}, request, job.reply()); });
    return job.Get();
  }
  v1::Job::State State(uint64_t id) { return Get(id)->state(); }
  Answer<v1::Job> StartWait(uint64_t id, Deadline deadline = Deadline::Infinite()) {
    Answer<v1::Job> job;
    CallContext ctx;
    ctx.deadline = deadline;
    v1::WaitJobRequest request;
    request.set_job_id(id);
    Do([&] { scheduler_->WaitJob(ctx, request, job.reply()); });
    return job;
  }
  absl::StatusOr<v1::Job> Cancel(uint64_t id) {
    Answer<v1::Job> job;
    v1::CancelJobRequest request;
    request.set_job_id(id);
    Do([&] { scheduler_->CancelJob({}, request, job.reply()); });
    return job.Get();
  }
  // Every node answers its PreparePlan commands, with the hash that it received.
  int AnswerPrepared() {
    Settle();
    const auto asked = Take(v1::Command::kPreparePlan);
    for (const auto& [node, command] : asked) {
      v1::Report report;
      report.mutable_plan_prepared()->set_plan_id(command.prepare_plan().plan_id());
      report.mutable_plan_prepared()->set_plan_hash(command.prepare_plan().plan_hash());
      // Different on each node.
      report.mutable_plan_prepared()->set_plan_bytes(plan_bytes_ - node);
      Report(node, report);
    }
    return static_cast<int>(asked.size());
  }
  void Done(int node, uint64_t job, const absl::Status& status = absl::OkStatus(),
            bool began = true) {
    v1::Report report;
    v1::LaunchDone* done = report.mutable_launch_done();
    done->set_job_id(job);
    done->set_began(began);
    if (!status.ok()) *done->mutable_error() = ToProto(status);
    v1::RankReport* rank = done->add_ranks();
    rank->set_rank(node);
    rank->set_node(node);
    rank->add_epoch_us(10.0 + node);
    rank->add_steps()->set_end_us(10.0 + node);
    Report(node, report);
  }
  void DoneEverywhere(uint64_t job) {
    Done(1, job);
    Done(0, job);
  }
  // Checks the error of a job whose own timeout has passed, which continues with `rest`.
  static void ExpectLate(const v1::Job& job, const std::string& rest) {
    EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
    const absl::Status error = FromProto(job.error());
    EXPECT_EQ(error.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(ReasonOf(error), kReasonDeadline);
    EXPECT_THAT(
        std::string(error.message()),
        testing::AllOf(testing::StartsWith(absl::StrFormat(
                           "job %d did not end within its timeout of %s", job.job_id(), rest)),
                       testing::EndsWith("; if it needs longer, give it a longer timeout")));
  }
  // Runs a job to its end.
  void Warm(const v1::SubmitJobRequest& request) {
    const uint64_t id = SubmitOk(request);
    AnswerPrepared();
    DoneEverywhere(id);
    ASSERT_EQ(State(id), v1::Job::STATE_SUCCEEDED);
  }
  // Returns the jobs launched since the last call, once each.
  std::vector<uint64_t> Launched() {
    std::vector<uint64_t> jobs;
    Settle();
    for (const auto& [node, command] : Take(v1::Command::kLaunchJob))
      if (jobs.empty() || jobs.back() != command.launch_job().job_id())
        jobs.push_back(command.launch_job().job_id());
    return jobs;
  }
  // Returns (node, job) for the cancels since the last call.
  std::set<std::pair<int, uint64_t>> Cancelled() {
    std::set<std::pair<int, uint64_t>> all;
    for (const auto& [node, command] : Take(v1::Command::kCancelLaunch))
      all.emplace(node, command.cancel_launch().job_id());
    return all;
  }
  double Metric(const std::string& name) { return metrics_.counter(name)->value(); }
  int64_t WorkspaceBytes() {
    int64_t bytes = 0;
    Do([&] { bytes = placement_.used_bytes(0, MemoryClass::kWorkspace); });
    return bytes;
  }

  ManualClock clock_;
  std::shared_ptr<const Machine> machine_;     // null: no prediction
  std::shared_ptr<const TuningTable> tuning_;  // null: no tuned plans
  int64_t plan_bytes_ = 1;  // bytes that the nodes report for the plans they prepare
  FakeMembers members_;
  Placement placement_;
  Metrics metrics_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Scheduler> scheduler_;
  Loop loop_{"a test", &clock_}, large_planner_{"large plans"}, planner_{"plans"};
};

}  // namespace agmm
