// Tuned plans through real daemons: jobs run them, and restarts and other worlds keep them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "agmm/v1/job.grpc.pb.h"
#include "agmm/v1/tuning.grpc.pb.h"
#include "tests/daemon/fake_members.h"
#include "tests/daemon/world_harness.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kSpec[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";

class TunedWorld {
 public:
  // `machines`: the folder of measurements and tuned plans.
  explicit TunedWorld(const std::string& machines, int nodes = 2)
      : nodes_(nodes), machines_(machines), world_(nodes) {
    Start();
  }
  void Start(int threads = 1) {
    for (int node = 0; node < nodes_; ++node) {
      Config config = world_.ConfigOf(node);
      config.machines = machines_;
      config.devices[0].threads = threads;
      ASSERT_TRUE(world_.Start(node, config, [](absl::Status) {}).ok());
    }
    world_.WaitReady(nodes_ - 1);
  }
  void Restart(int threads = 1) {
    for (int node = nodes_ - 1; node >= 0; --node) world_.Stop(node);
    ASSERT_NO_FATAL_FAILURE(Start(threads));
  }

  absl::StatusOr<v1::TuningStatus> Store(const v1::TunedPlan& plan) {
    v1::StoreTuningRequest request;
    *request.add_plans() = plan;
    return Call(&v1::TuningService::Stub::StoreTuning, request);
  }
  absl::StatusOr<v1::TuningStatus> Get() {
    return Call(&v1::TuningService::Stub::GetTuning, v1::GetTuningRequest());
  }

  // Runs a product of M x 64 x 64 and returns its record.
  v1::Job Run(int64_t m, const v1::PlanOptions& options = {}, bool ignore_tuning = false) {
    v1::SubmitJobRequest job;
    job.set_spec(kSpec);
    *job.mutable_mesh() = MeshOf(nodes_);
    *job.mutable_options() = options;
    job.set_ignore_tuning(ignore_tuning);
    for (const auto& [name, sharding, rows] :
         {std::tuple("A", "[M_x, K]", m), {"B", "[K, N_x]", int64_t{64}}}) {
      v1::FillTensorRequest fill;
      *fill.mutable_put() =
          TensorRequest(absl::StrCat(name, m), sharding, rows, 64, MeshOf(nodes_));
      fill.mutable_fill()->set_kind(v1::Fill::KIND_INTEGERS);
      v1::Tensor tensor;
      grpc::ClientContext context;
      SetDeadline(&context);
      const auto stub = v1::TensorService::NewStub(world_.Channel(nodes_ - 1));
      const grpc::Status filled = stub->FillTensor(&context, fill, &tensor);
      EXPECT_TRUE(filled.ok()) << filled.error_message();
      job.add_tensors()->set_name(absl::StrCat(name, m));
    }
    job.add_tensors()->set_name(absl::StrCat("C", m));
    grpc::ClientContext context, context_of_wait;
    SetDeadline(&context);
    SetDeadline(&context_of_wait);
    const auto stub = v1::JobService::NewStub(world_.Channel(nodes_ - 1));
    v1::Job record;
    grpc::Status status = stub->SubmitJob(&context, job, &record);
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::WaitJobRequest wait;
    wait.set_job_id(record.job_id());
    status = stub->WaitJob(&context_of_wait, wait, &record);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(record.state(), v1::Job::STATE_SUCCEEDED);
    return record;
  }

 private:
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(ToGrpc(Deadline::After(kPatience)));
  }
  // Calls the last node, which passes the call on.
  template <typename Request>
  absl::StatusOr<v1::TuningStatus> Call(
      grpc::Status (v1::TuningService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                      v1::TuningStatus*),
      const Request& request) {
    const auto stub = v1::TuningService::NewStub(world_.Channel(nodes_ - 1));
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::TuningStatus status;
    const grpc::Status answer = ((*stub).*method)(&context, request, &status);
    if (!answer.ok()) return FromGrpc(answer);
    return status;
  }

  const int nodes_;
  const std::string machines_;
  TestWorld world_;
};

// Prediction would not cut so small a product into 3 chunks.
v1::TunedPlan PlanOf(int64_t m, int nodes = 2) {
  v1::TunedPlan plan;
  plan.set_spec(kSpec);
  for (int i = 0; i < 3; ++i) plan.add_dtypes(v1::DTYPE_F32);
  plan.set_mesh(absl::StrCat("x=", nodes));
  for (int node = 0; node < nodes; ++node) plan.add_ranks_per_node(1);
  plan.set_m(m);
  plan.set_n(64);
  plan.set_k(64);
  plan.mutable_options()->set_algorithm("ring");
  plan.mutable_options()->set_chunk_count(3);
  plan.mutable_options()->set_k_chunk_count(1);
  plan.mutable_options()->set_split("N=x");
  plan.set_time_us(212);
  plan.set_serial_us(290);
  plan.set_date("2026-11-27");
  return plan;
}

TEST(TuningWorld, AStoredPlanAppliesToLaterJobs) {
  TunedWorld world("none");
  EXPECT_THAT(world.Run(64).explanation(), Not(HasSubstr("tuned")));
  const auto stored = world.Store(PlanOf(64));
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->file(), "");
  ASSERT_EQ(stored->plans_size(), 1);
  EXPECT_THAT(stored->plans(0).hardware(), HasSubstr("cpu: "));
  const v1::Job job = world.Run(64);
  EXPECT_THAT(job.explanation(),
              StartsWith("tuned: ring in 3 chunks, split N=x took 212 us on 2026-11-27 "
                         "(serial 290 us); predicted "));
  EXPECT_EQ(job.options().algorithm(), "ring");
  EXPECT_EQ(job.options().chunk_count(), 3);
}

TEST(TuningWorld, TheNearestShapeAppliesToo) {
  TunedWorld world("none");
  ASSERT_TRUE(world.Store(PlanOf(64)).ok());
  EXPECT_THAT(world.Run(100).explanation(),
              StartsWith("tuned for M=64 N=64 K=64, the nearest shape: "));
  EXPECT_THAT(world.Run(130).explanation(), Not(HasSubstr("tuned")));
}

TEST(TuningWorld, RequestsAreKept) {
  TunedWorld world("none");
  ASSERT_TRUE(world.Store(PlanOf(64)).ok());
  EXPECT_THAT(world.Run(64, {}, /*ignore_tuning=*/true).explanation(), Not(HasSubstr("tuned")));
  EXPECT_THAT(world.Run(64).explanation(), HasSubstr("tuned"));
  v1::PlanOptions asked;
  asked.set_chunk_count(2);
  const v1::Job chunks = world.Run(64, asked);
  EXPECT_EQ(chunks.options().chunk_count(), 2);
  EXPECT_THAT(chunks.explanation(), Not(HasSubstr("tuned")));
  asked.Clear();
  asked.set_algorithm("direct");
  EXPECT_EQ(world.Run(64, asked).options().algorithm(), "direct");
}

TEST(TuningWorld, ARestartKeepsStoredPlansAndSkipsCorruptOnes) {
  const TempFolder folder("tuning-world");
  TunedWorld world(folder.path());
  const auto stored = world.Store(PlanOf(64));
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_EQ(stored->file(), folder / "tuning.textproto");
  std::ofstream(stored->file(), std::ios::app) << "plans { time_us: soon }\n";
  world.Restart();
  const auto read = world.Get();
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->plans_size(), 1);
  EXPECT_EQ(read->plans(0).SerializeAsString(), stored->plans(0).SerializeAsString());
  EXPECT_THAT(read->skipped(),
              ElementsAre(AllOf(StartsWith(stored->file() + ":"), HasSubstr(":18: "))));
  EXPECT_THAT(world.Run(64).explanation(), StartsWith("tuned: ring in 3 chunks"));
}

TEST(TuningWorld, PlansOfOtherHardwareDoNotApply) {
  const TempFolder folder("tuning-world");
  TunedWorld world(folder.path());
  ASSERT_TRUE(world.Store(PlanOf(64)).ok());
  world.Restart(/*threads=*/2);
  EXPECT_EQ(world.Get()->plans_size(), 1);
  EXPECT_THAT(world.Run(64).explanation(), Not(HasSubstr("tuned")));
  world.Restart();
  EXPECT_EQ(world.Get()->plans_size(), 1);
  EXPECT_THAT(world.Run(64).explanation(), HasSubstr("tuned"));
}

TEST(TuningWorld, WorldsThatShareAFolderLoseNoPlans) {
  const TempFolder folder("tuning-world");
  TunedWorld world(folder.path()), other(folder.path(), 1);
  ASSERT_TRUE(world.Store(PlanOf(64)).ok());
  v1::TunedPlan alone = PlanOf(32, 1);
  alone.mutable_options()->set_split("none");
  alone.mutable_options()->set_chunk_count(1);
  const auto both = other.Store(alone);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->plans_size(), 2);
  EXPECT_EQ(world.Store(PlanOf(128))->plans_size(), 3);
  world.Restart();
  EXPECT_EQ(world.Get()->plans_size(), 3);
}

TEST(TuningWorld, ABadRequestNamesItsFieldAndStoresNothing) {
  TunedWorld world("none");
  v1::TunedPlan open = PlanOf(64);
  open.mutable_options()->set_algorithm("auto");
  const absl::Status refused = world.Store(open).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), StartsWith("plans[0].options.algorithm is open"));
  EXPECT_EQ(world.Get()->plans_size(), 0);
}

}  // namespace
}  // namespace agmm
