// Memory and counters of every node, in the status of any daemon.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "agmm/v1/job.grpc.pb.h"
#include "daemon/link/join_merge.h"
#include "proto/convert/grpc_call.h"
#include "tests/daemon/fake_members.h"
#include "tests/daemon/world_harness.h"

namespace agmm {
namespace {

class UsageWorldTest : public testing::Test {
 protected:
  UsageWorldTest() {
    for (int node : {0, 1, 2}) EXPECT_TRUE(world_.Start(node).ok());
    world_.WaitReady(2);
  }
  void Fill(const std::string& name, const std::string& sharding, uint64_t seed) {
    v1::FillTensorRequest request;
    *request.mutable_put() = TensorRequest(name, sharding, 96, 96, MeshOf(3));
    request.mutable_fill()->set_kind(v1::Fill::KIND_INTEGERS);
    request.mutable_fill()->set_seed(seed);
    grpc::ClientContext context;
    v1::Tensor tensor;
    const grpc::Status status =
        v1::TensorService::NewStub(world_.Channel(1))->FillTensor(&context, request, &tensor);
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  v1::Job Multiply() {
    v1::SubmitJobRequest request;
    request.set_spec("A[M_x, K] * B[K, N_x] -> C[M, N_x]");
    *request.mutable_mesh() = MeshOf(3);
    for (const char* name : {"A", "B", "C"}) request.add_tensors()->set_name(name);
    const auto stub = v1::JobService::NewStub(world_.Channel(2));
    grpc::ClientContext submit, wait;
    v1::Job job;
    grpc::Status status = stub->SubmitJob(&submit, request, &job);
    EXPECT_TRUE(status.ok()) << status.error_message();
    v1::WaitJobRequest waiting;
    waiting.set_job_id(job.job_id());
    while (status.ok() && job.state() != v1::Job::STATE_SUCCEEDED &&
           job.state() != v1::Job::STATE_FAILED) {
      grpc::ClientContext context;
      context.set_deadline(ToGrpc(Deadline::After(kPatience)));
      status = stub->WaitJob(&context, waiting, &job);
    }
    EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED) << job.error().message();
    return job;
  }
  // Returns the devices of all nodes, from the status of `node`.
  std::vector<v1::DeviceStatus> Devices(int node) const {
    const v1::GetStatusResponse status = world_.Status(node);
    std::vector<v1::DeviceStatus> devices;
    for (const v1::NodeStatus& one : status.nodes())
      devices.insert(devices.end(), one.devices().begin(), one.devices().end());
    return devices;
  }
  TestWorld world_{3};
};

TEST_F(UsageWorldTest, EveryDaemonReportsTheUsageOfAllNodes) {
  Fill("A", "[M_x, K]", 1);
  Fill("B", "[K, N_x]", 2);
  Fill("C", "[M, N_x]", 3);
  Multiply();
  // The usage arrives with the next heartbeats.
  for (int node : {0, 1, 2}) {
    EXPECT_TRUE(Eventually([&] {
      const v1::GetStatusResponse status = world_.Status(node);
      for (const v1::NodeStatus& one : status.nodes())
        if (one.plan_bytes() == 0) return false;
      for (const v1::DeviceStatus& device : Devices(node)) {
        if (device.pack_count() != 1 || device.packed_bytes() == 0 || device.scratch_bytes() == 0 ||
            device.allocation_count() < 2)
          return false;
      }
      return true;
    })) << node;
  }
  const auto before = Devices(1);
  for (int i = 0; i < 20; ++i) {
    Fill("A", "[M_x, K]", i);
    Multiply();
  }
  // Checks each node's own status, because heartbeats may be in flight.
  for (int node : {0, 1, 2}) {
    const v1::DeviceStatus after = Devices(node)[node];
    EXPECT_EQ(after.pack_count(), before[node].pack_count()) << node;
    EXPECT_EQ(after.allocation_count(), before[node].allocation_count()) << node;
    EXPECT_EQ(after.packed_bytes(), before[node].packed_bytes()) << node;
    EXPECT_EQ(after.scratch_bytes(), before[node].scratch_bytes()) << node;
  }
}

TEST(MergeInto, AWaitingUsageSurvivesAHeartbeatWithoutOne) {
  v1::MemberMessage waiting, first, last, none;
  waiting.mutable_heartbeat();
  first.mutable_heartbeat()->mutable_usage()->set_staging_bytes(1);
  last.mutable_heartbeat()->mutable_usage()->set_staging_bytes(2);
  none.mutable_heartbeat();
  for (v1::MemberMessage* heartbeat : {&first, &last, &none})
    EXPECT_TRUE(MergeInto(&waiting, heartbeat));
  EXPECT_EQ(waiting.heartbeat().usage().staging_bytes(), 2);
}

TEST(MergeInto, ReportsOfTwoGenerationsAreNotMerged) {
  v1::MemberMessage waiting, report, later;
  waiting.mutable_heartbeat();
  report.set_generation(1);
  report.add_reports()->mutable_world_ready();
  later = report;
  later.set_generation(2);
  EXPECT_TRUE(MergeInto(&waiting, &report));
  EXPECT_EQ(waiting.generation(), 1u);
  EXPECT_EQ(waiting.reports_size(), 1);
  EXPECT_FALSE(MergeInto(&waiting, &later));
  v1::MemberMessage hello;
  hello.mutable_hello();
  EXPECT_FALSE(MergeInto(&waiting, &hello));
}

// A member reads nothing else from them, so a World in the same message would be lost.
TEST(MergeInto, ProofsAreNotMerged) {
  v1::SequencerMessage challenge, proof, world;
  challenge.set_challenge("c");
  proof.set_proof("p");
  world.add_commands()->mutable_world();
  v1::SequencerMessage last = challenge, next = proof;
  EXPECT_FALSE(MergeInto(&last, &next));
  last = proof;
  EXPECT_FALSE(MergeInto(&last, &world));
}

}  // namespace
}  // namespace agmm
