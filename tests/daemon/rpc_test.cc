// The handling that all calls to a daemon share, seen by a client of a world of one node.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "agmm/v1/job.grpc.pb.h"
#include "kernels/base/reason.h"
#include "proto/channel/channel.h"
#include "proto/convert/grpc_call.h"
#include "tests/daemon/fake_members.h"
#include "tests/daemon/world_harness.h"

namespace agmm {
namespace {

using testing::HasSubstr;

class RpcTest : public testing::Test {
 protected:
  RpcTest() {
    char directory[] = "/tmp/agmm-rpc-XXXXXX";
    EXPECT_NE(mkdtemp(directory), nullptr);
    directory_ = directory;
    socket_ = directory_ + "/x.sock";
    Config config = DefaultConfigFor(1, int64_t{64} << 20, socket_);
    config.machines = kNoJournal;
    absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(config, [](absl::Status) {});
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    daemon_ = *std::move(daemon);
    channel_ = OpenChannel("unix:" + socket_);
    EXPECT_TRUE(Eventually([&] { return Status().ready(); }));
  }
  ~RpcTest() override {
    daemon_.reset();
    unlink((socket_ + ".lock").c_str());
    rmdir(directory_.c_str());
  }
  v1::GetStatusResponse Status() {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    v1::GetStatusResponse status;
    const grpc::Status result =
        v1::ClusterService::NewStub(channel_)->GetStatus(&context, {}, &status);
    EXPECT_TRUE(result.ok()) << result.error_message();
    return status;
  }
  double Metric(const std::string& name) {
    const v1::GetStatusResponse status = Status();
    for (const v1::Metric& metric : status.metrics())
      if (metric.name() == name) return metric.value();
    ADD_FAILURE() << "there is no metric " << name;
    return -1;
  }
  // Sends one message and returns the answer, both as raw bytes.
  std::string RawCall(const std::string& method, const std::string& request) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(ToGrpc(Deadline::After(kPatience)));
    grpc::CompletionQueue queue;
    auto call = stub.PrepareCall(&context, method, &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok) && ok);
    const grpc::Slice slice(request);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok) && ok);
    grpc::ByteBuffer answer;
    call->Read(&answer, nullptr);
    EXPECT_TRUE(queue.Next(&tag, &ok) && ok) << method;
    context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    grpc::Slice whole;
    if (!answer.DumpToSingleSlice(&whole).ok()) return "";
    return std::string(reinterpret_cast<const char*>(whole.begin()), whole.size());
  }

  std::string directory_, socket_;
  std::unique_ptr<Daemon> daemon_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(RpcTest, HealthIsServingWhileTheWorldIsReady) {
  EXPECT_EQ(RawCall("/grpc.health.v1.Health/Check", ""), "\x08\x01");
}

TEST_F(RpcTest, ReflectionListsTheServices) {
  const std::string list = RawCall("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                                   std::string("\x3a\x00", 2));
  for (const char* service :
       {"agmm.v1.ClusterService", "agmm.v1.TensorService", "agmm.v1.ContentService",
        "agmm.v1.JobService", "agmm.v1.MachineService", "agmm.v1.TuningService"})
    EXPECT_THAT(list, HasSubstr(service));
}

TEST_F(RpcTest, OwnerIsTheUserOfTheSocket) {
  v1::CreateTensorRequest request;
  request.mutable_spec()->set_rows(4);
  request.mutable_spec()->set_cols(4);
  request.mutable_spec()->set_dtype(v1::DTYPE_F32);
  request.mutable_spec()->set_sharding("[M, K]");
  v1::MeshAxis* axis = request.mutable_spec()->mutable_mesh()->add_axes();
  axis->set_name("x");
  axis->set_size(1);
  grpc::ClientContext context;
  context.AddMetadata("x-agmm-principal", "uid:4711");
  v1::Tensor tensor;
  const grpc::Status status =
      v1::TensorService::NewStub(channel_)->CreateTensor(&context, request, &tensor);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(tensor.owner(), absl::StrCat("uid:", geteuid()));
}

TEST_F(RpcTest, ResidentHeapMemoryIsReportedAndKept) {
  EXPECT_EQ(Metric("heap_resident_bytes"), 0);
  v1::FillTensorRequest request;
  *request.mutable_put() = TensorRequest("A", "[M, K]", 512, 512, MeshOf(1));
  request.mutable_fill()->set_kind(v1::Fill::KIND_INTEGERS);
  const auto tensors = v1::TensorService::NewStub(channel_);
  v1::Tensor tensor;
  grpc::ClientContext fill, drop;
  grpc::Status status = tensors->FillTensor(&fill, request, &tensor);
  ASSERT_TRUE(status.ok()) << status.error_message();
  const double taken = Metric("heap_resident_bytes");
  EXPECT_GE(taken, tensor.shard_bytes());
  v1::DeleteTensorRequest gone;
  gone.set_tensor_id(tensor.tensor_id());
  v1::DeleteTensorResponse deleted;
  status = tensors->DeleteTensor(&drop, gone, &deleted);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(Metric("heap_resident_bytes"), taken);
}

TEST_F(RpcTest, InvalidRequestsAreRefusedOnArrival) {
  auto tensors = v1::TensorService::NewStub(channel_);
  auto jobs = v1::JobService::NewStub(channel_);
  const auto refused = [](auto call, absl::string_view what) {
    grpc::ClientContext context;
    const grpc::Status status = call(&context);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(std::string(what)));
  };
  v1::Tensor tensor;
  v1::DeleteTensorResponse deleted;
  v1::Job job;
  v1::ListJobsRequest page;
  v1::ListJobsResponse list;
  page.set_page_size(-1);
  refused([&](auto* c) { return tensors->CreateTensor(c, {}, &tensor); },
          "the number of rows is 0");
  refused([&](auto* c) { return tensors->DeleteTensor(c, {}, &deleted); },
          "the id of the tensor is 0");
  refused([&](auto* c) { return tensors->FillTensor(c, {}, &tensor); }, "has no target");
  refused([&](auto* c) { return jobs->SubmitJob(c, {}, &job); }, "the length of the spec is 0");
  refused([&](auto* c) { return jobs->ListJobs(c, page, &list); }, "page_size is -1");
}

TEST_F(RpcTest, CallsAndFailuresAreCounted) {
  const double calls = Metric("rpcs_total"), failures = Metric("rpcs_failed_total");
  grpc::ClientContext context;
  v1::GetJobRequest request;
  request.set_job_id(99);
  v1::Job job;
  const grpc::Status status = v1::JobService::NewStub(channel_)->GetJob(&context, request, &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(absl::IsNotFound(FromGrpc(status)));
  EXPECT_THAT(status.error_message(), HasSubstr("99"));
  EXPECT_EQ(Metric("rpcs_failed_total"), failures + 1);
  EXPECT_GE(Metric("rpcs_total"), calls + 3);
}

TEST_F(RpcTest, CallsInProgressEndUnavailableWhenTheDaemonStops) {
  auto stub = v1::ClusterService::NewStub(channel_);
  grpc::ClientContext context;
  auto reader = stub->OpenSession(&context, {});
  v1::SessionEvent event;
  ASSERT_TRUE(reader->Read(&event));
  daemon_.reset();
  EXPECT_FALSE(reader->Read(&event));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
}

TEST(Status, LongMessagesAreCutAndReasonsSurvive) {
  const absl::Status error =
      WithReason(absl::AbortedError(std::string(10000, 'x')), kReasonPeerLost);
  const grpc::Status wire = ToGrpc(error);
  EXPECT_EQ(wire.error_message().size(), 2048u);
  EXPECT_EQ(ReasonOf(FromGrpc(wire)), kReasonPeerLost);
  EXPECT_TRUE(absl::IsAborted(FromGrpc(wire)));
}

}  // namespace
}  // namespace agmm
