// RunJobs through real daemons: many jobs on one stream, and how streams and jobs end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "agmm/v1/job.grpc.pb.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/reason.h"
#include "proto/convert/grpc_call.h"
#include "proto/convert/rpc_status.h"
#include "tests/daemon/world_harness.h"

namespace agmm {
namespace {

using testing::HasSubstr;

class RunJobsTest : public testing::Test {
 protected:
  RunJobsTest() {
    for (int node : {0, 1}) EXPECT_TRUE(world_.Start(node).ok());
    world_.WaitReady(1);
    for (const auto& [name, sharding] : {std::pair("A", "[M_x, K]"), std::pair("B", "[K, N_x]")}) {
      v1::FillTensorRequest request;
      request.mutable_put()->set_name(name);
      v1::TensorSpec* spec = request.mutable_put()->mutable_spec();
      spec->set_sharding(sharding);
      spec->set_rows(64);
      spec->set_cols(64);
      spec->set_dtype(v1::DTYPE_F32);
      SetMesh(spec->mutable_mesh());
      request.mutable_fill()->set_kind(v1::Fill::KIND_INTEGERS);
      grpc::ClientContext context;
      SetDeadline(&context);
      v1::Tensor tensor;
      EXPECT_TRUE(v1::TensorService::NewStub(world_.Channel(1))
                      ->FillTensor(&context, request, &tensor)
                      .ok());
    }
  }
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_wait_for_ready(true);
    context->set_deadline(ToGrpc(Deadline::After(kPatience)));
  }
  static void SetMesh(v1::Mesh* mesh) {
    v1::MeshAxis* axis = mesh->add_axes();
    axis->set_name("x");
    axis->set_size(2);
  }
  static v1::SubmitJobRequest Request(const std::string& id, const std::string& a = "A") {
    v1::SubmitJobRequest request;
    request.set_request_id(id);
    request.set_spec("A[M_x, K] * B[K, N_x] -> C[M, N_x]");
    SetMesh(request.mutable_mesh());
    for (const std::string& name : {a, std::string("B"), std::string("C")})
      request.add_tensors()->set_name(name);
    return request;
  }

  // One stream to a node.
  struct Stream {
    Stream(TestWorld& world, int node) : stub(v1::JobService::NewStub(world.Channel(node))) {
      SetDeadline(&context);
      stream = stub->RunJobs(&context);
    }
    // Reads until there are `count` outcomes, or the stream has ended.
    void Read(size_t count) {
      v1::RunJobsResponse response;
      while (outcomes.size() < count && stream->Read(&response)) {
        for (const v1::JobOutcome& outcome : response.outcomes()) {
          EXPECT_EQ(outcomes.count(outcome.request_id()), 0u) << "reported twice";
          outcomes[outcome.request_id()] = outcome;
        }
      }
    }
    const std::unique_ptr<v1::JobService::Stub> stub;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReaderWriter<v1::RunJobsRequest, v1::RunJobsResponse>> stream;
    std::map<std::string, v1::JobOutcome> outcomes;
  };

  TestWorld world_{2};
};

TEST_F(RunJobsTest, EachJobHasOneOutcomeThroughAnyDaemon) {
  for (int node : {0, 1}) {
    Stream run(world_, node);
    v1::RunJobsRequest request;
    for (int i = 0; i < 50; ++i) *request.add_jobs() = Request(absl::StrCat(node, "-", i));
    *request.add_jobs() = Request(absl::StrCat(node, "-nobody"), "nobody");
    v1::SubmitJobRequest* negative = request.add_jobs();
    *negative = Request(absl::StrCat(node, "-negative"));
    negative->set_repeat_count(-1);
    EXPECT_TRUE(run.stream->Write(request));
    request.Clear();
    *request.add_jobs() = Request(absl::StrCat(node, "-last"));
    EXPECT_TRUE(run.stream->Write(request));
    // Outstanding outcomes still arrive.
    EXPECT_TRUE(run.stream->WritesDone());
    run.Read(1000);
    const grpc::Status end = run.stream->Finish();
    EXPECT_TRUE(end.ok()) << end.error_message();
    ASSERT_EQ(run.outcomes.size(), 53u);
    for (const auto& [id, outcome] : run.outcomes) {
      if (id == absl::StrCat(node, "-nobody")) {
        EXPECT_TRUE(absl::IsNotFound(FromProto(outcome.error()))) << outcome.error().message();
      } else if (id == absl::StrCat(node, "-negative")) {
        EXPECT_TRUE(absl::IsInvalidArgument(FromProto(outcome.error())))
            << outcome.error().message();
      } else {
        EXPECT_EQ(outcome.job().state(), v1::Job::STATE_SUCCEEDED)
            << id << outcome.error().message();
        EXPECT_EQ(outcome.job().request_id(), id);
      }
    }
  }
}

TEST_F(RunJobsTest, AJobWithoutAValidRequestIdEndsTheStream) {
  // An outcome repeats the id, and 4096 may be unread.
  for (const std::string& id : {std::string(), std::string(1000, 'x')}) {
    Stream run(world_, 1);
    v1::RunJobsRequest request;
    *request.add_jobs() = Request(id);
    EXPECT_TRUE(run.stream->Write(request));
    run.Read(1);
    const absl::Status end = FromGrpc(run.stream->Finish());
    EXPECT_TRUE(absl::IsInvalidArgument(end)) << end;
    EXPECT_THAT(std::string(end.message()), HasSubstr("request_id"));
    EXPECT_EQ(run.outcomes.size(), 0u);
  }
}

TEST_F(RunJobsTest, TooManyJobsInAMessageEndTheStream) {
  Stream run(world_, 1);
  v1::RunJobsRequest request;
  for (int i = 0; i < 4097; ++i) *request.add_jobs() = Request(absl::StrCat(i));
  EXPECT_TRUE(run.stream->Write(request));
  run.Read(1);
  EXPECT_EQ(run.outcomes.size(), 0u);
  const absl::Status end = FromGrpc(run.stream->Finish());
  EXPECT_TRUE(absl::IsInvalidArgument(end)) << end;
  EXPECT_THAT(std::string(end.message()), HasSubstr("4097 jobs; at most 4096"));
}

TEST_F(RunJobsTest, JobsWaitForRoomInTheirOwnersShareOfTheQueue) {
  constexpr int kShare = 2500, kJobs = kShare + 300;
  failpoint::Arm("executor.hold_rank_1");
  Stream run(world_, 1), other(world_, 1);
  v1::RunJobsRequest request;
  for (int i = 0; i < kJobs; ++i) *request.add_jobs() = Request(absl::StrCat(i));
  EXPECT_TRUE(run.stream->Write(request));
  // Job ids rise by one.
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ListJobsRequest newest;
    newest.set_page_size(1);
    v1::ListJobsResponse list;
    EXPECT_TRUE(run.stub->ListJobs(&context, newest, &list).ok());
    return list.jobs_size() == 1 && list.jobs(0).job_id() >= kShare;
  }));
  // A stream of the same owner without a job in the queue waits, too.
  request.Clear();
  *request.add_jobs() = Request("other");
  EXPECT_TRUE(other.stream->Write(request));
  failpoint::Disarm("executor.hold_rank_1");
  other.Read(1);
  EXPECT_EQ(other.outcomes["other"].job().state(), v1::Job::STATE_SUCCEEDED)
      << other.outcomes["other"].error().message();
  run.Read(kJobs);
  ASSERT_EQ(run.outcomes.size(), static_cast<size_t>(kJobs));
  int succeeded = 0;
  for (const auto& [id, outcome] : run.outcomes)
    succeeded += outcome.job().state() == v1::Job::STATE_SUCCEEDED ? 1 : 0;
  EXPECT_EQ(succeeded, kJobs);
}

TEST_F(RunJobsTest, JobsOutliveTheirStreamAndTheSameRequestFindsThem) {
  failpoint::Arm("executor.hold_rank_1");
  v1::RunJobsRequest request;
  *request.add_jobs() = Request("held");
  uint64_t id = 0;
  {
    Stream run(world_, 1);
    EXPECT_TRUE(run.stream->Write(request));
    EXPECT_TRUE(Eventually([&] {
      grpc::ClientContext context;
      SetDeadline(&context);
      v1::ListJobsResponse list;
      EXPECT_TRUE(run.stub->ListJobs(&context, {}, &list).ok());
      if (list.jobs_size() == 1) id = list.jobs(0).job_id();
      return id != 0;
    }));
    run.context.TryCancel();
    EXPECT_FALSE(run.stream->Finish().ok());
  }
  Stream again(world_, 0);
  EXPECT_TRUE(again.stream->Write(request));
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::CancelJobRequest cancel;
  cancel.set_job_id(id);
  v1::Job job;
  EXPECT_TRUE(again.stub->CancelJob(&context, cancel, &job).ok());
  again.Read(1);
  failpoint::Disarm("executor.hold_rank_1");
  EXPECT_EQ(again.outcomes["held"].job().job_id(), id);
  EXPECT_EQ(again.outcomes["held"].job().state(), v1::Job::STATE_CANCELLED);
}

TEST_F(RunJobsTest, ALostSequencerEndsTheStream) {
  failpoint::Arm("executor.hold_rank_1");
  Stream run(world_, 1);
  v1::RunJobsRequest request;
  *request.add_jobs() = Request("held");
  EXPECT_TRUE(run.stream->Write(request));
  EXPECT_TRUE(Eventually([&] {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::ListJobsResponse list;
    EXPECT_TRUE(run.stub->ListJobs(&context, {}, &list).ok());
    return list.jobs_size() == 1;
  }));
  world_.Stop(0);
  run.Read(2);
  failpoint::Disarm("executor.hold_rank_1");
  const absl::Status end = FromGrpc(run.stream->Finish());
  EXPECT_TRUE(absl::IsAborted(end)) << end;
  EXPECT_EQ(ReasonOf(end), kReasonPeerLost);
  // A sequencer that stops cleanly may still have sent the job's end.
  if (const auto outcome = run.outcomes.find("held"); outcome != run.outcomes.end()) {
    EXPECT_EQ(ReasonOf(FromProto(outcome->second.job().error())), kReasonPeerLost);
  }
  Stream later(world_, 1);
  later.stream->Write(request);
  later.Read(1);
  EXPECT_EQ(ReasonOf(FromGrpc(later.stream->Finish())), kReasonWorldIncomplete);
}

}  // namespace
}  // namespace agmm
