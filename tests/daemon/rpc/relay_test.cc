// Calls that a member relays to a fake sequencer.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agmm/v1/job.grpc.pb.h"
#include "daemon/rpc/cluster_service.h"
#include "daemon/rpc/server.h"
#include "daemon/rpc/services.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "proto/channel/channel.h"
#include "proto/convert/grpc_call.h"
#include "tests/daemon/rpc/fake_jobs.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using testing::HasSubstr;

class RelayTest : public testing::Test {
 protected:
  RelayTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&jobs_);
    sequencer_ = builder.BuildAndStart();
    const auto channel = OpenChannel(absl::StrCat("127.0.0.1:", port));
    EXPECT_TRUE(channel->WaitForConnected(ToGrpc(Deadline::After(kPatience))));
    client_ = std::make_unique<SequencerClient>(channel, "node a (127.0.0.1:1)");
    calls_ = client_->calls();
    cluster_ = std::make_unique<ClusterService>(&calls_, &view_, 0, 100);
    relay_ = MakeRelay("agmm.v1.JobService", client_.get());
    member_ =
        *RpcServer::Start({"127.0.0.1:0"}, &metrics_, &members_, {cluster_.get(), relay_.get()});
    EXPECT_TRUE(member_->Open().ok());
    channel_ = OpenChannel(absl::StrCat("127.0.0.1:", member_->port()));
    stub_ = v1::JobService::NewStub(channel_);
  }
  ~RelayTest() override {
    member_->Stop();
    client_.reset();
    sequencer_->Shutdown(ToGrpc(Deadline::After(absl::ZeroDuration())));
  }

  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(ToGrpc(Deadline::After(kPatience)));
  }
  absl::StatusOr<v1::Job> GetJob() {
    grpc::ClientContext context;
    SetDeadline(&context);
    return GetJob(&context);
  }
  absl::StatusOr<v1::Job> GetJob(grpc::ClientContext* context) {
    v1::GetJobRequest request;
    request.set_job_id(7);
    v1::Job job;
    const absl::Status status = FromGrpc(stub_->GetJob(context, request, &job));
    if (!status.ok()) return status;
    return job;
  }
  // Calls WaitJob, which is never answered; `meanwhile` runs once the call has reached the
  // sequencer.
  absl::Status WaitJob(const std::function<void(grpc::ClientContext*)>& meanwhile) {
    grpc::ClientContext context;
    SetDeadline(&context);
    grpc::Status status;
    std::thread waits([&] {
      v1::Job job;
      status = stub_->WaitJob(&context, {}, &job);
    });
    EXPECT_TRUE(jobs_.waiting.WaitFor(kPatience));
    meanwhile(&context);
    waits.join();
    return FromGrpc(status);
  }
  static v1::RunJobsRequest JobsCalled(const std::vector<std::string>& ids) {
    v1::RunJobsRequest request;
    for (const std::string& id : ids) request.add_jobs()->set_request_id(id);
    return request;
  }

  FakeJobs jobs_;
  std::unique_ptr<grpc::Server> sequencer_;
  Metrics metrics_;
  Runner runner_{0, 0, {}, {}, &metrics_, [](v1::Report) {}};  // without devices
  StatusView view_{DefaultConfigFor(1, 1 << 20, "/x"), &runner_, nullptr, &metrics_};
  std::unique_ptr<SequencerClient> client_;
  SequencerCalls calls_;
  std::unique_ptr<ClusterService> cluster_;
  std::unique_ptr<grpc::Service> relay_;
  MemberTokens members_;
  std::unique_ptr<RpcServer> member_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> stub_;
};

TEST_F(RelayTest, AMembersCallNamesItsCaller) {
  client_->SetConnected("token");
  members_.Add("known");
  grpc::ClientContext context;
  SetDeadline(&context);
  context.AddMetadata(kPrincipalKey, "uid:7");
  context.AddMetadata(kMemberKey, "known");
  ASSERT_TRUE(GetJob(&context).ok());
  EXPECT_EQ(jobs_.metadata()[kPrincipalKey], "uid:7");
}

TEST_F(RelayTest, ContextIsForwarded) {
  client_->SetConnected("token");
  const Deadline deadline = Deadline::After(kPatience);
  grpc::ClientContext context;
  context.set_deadline(ToGrpc(deadline));
  const std::map<std::string, std::string> sent = {{kRequestIdKey, "r1"},
                                                   {kTraceparentKey, "00-1-2-3"},
                                                   {kSessionKey, "s1"},
                                                   {kSequencerKey, "q1"}};
  for (const auto& [key, value] : sent) context.AddMetadata(key, value);
  // Statements of a caller over TCP about itself are ignored.
  context.AddMetadata(kPrincipalKey, "uid:7");
  context.AddMetadata(kMemberKey, "guessed");
  const absl::StatusOr<v1::Job> job = GetJob(&context);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job_id(), 7u);
  for (const auto& [key, value] : sent) EXPECT_EQ(jobs_.metadata()[key], value) << key;
  EXPECT_THAT(jobs_.metadata()[kPrincipalKey], testing::StartsWith("ipv4:127.0.0.1:"));
  EXPECT_EQ(jobs_.metadata()[kMemberKey], "token");
  EXPECT_LE(jobs_.deadline().Left(), deadline.Left() + absl::Seconds(1));
}

TEST_F(RelayTest, ErrorsKeepCodeMessageAndReason) {
  client_->SetConnected("token");
  for (const absl::Status& error :
       {WithReason(absl::ResourceExhaustedError("asked 5, free 4"), kReasonHeapFull),
        WithReason(absl::UnavailableError("waiting for node b"), kReasonWorldIncomplete),
        absl::UnavailableError("without a reason"), absl::NotFoundError("no job 7")}) {
    jobs_.Answer(error);
    const absl::Status got = GetJob().status();
    EXPECT_EQ(got, error) << got;
    EXPECT_EQ(ReasonOf(got), ReasonOf(error));
  }
}

TEST_F(RelayTest, EachStatusOfGrpcItselfReachesTheCallerAsASentence) {
  client_->SetConnected("token");
  jobs_.without_details = true;
  for (int code = 1; code <= 16; ++code) {
    const auto named = static_cast<absl::StatusCode>(code);
    for (const std::string& bare : {std::string(), absl::StatusCodeToString(named)}) {
      jobs_.Answer(absl::Status(named, bare));
      const std::string text(GetJob().status().message());
      EXPECT_THAT(text, HasSubstr("the sequencer, node a (127.0.0.1:1), ")) << named;
      EXPECT_GE(std::count(text.begin(), text.end(), ' '), 9) << text;
    }
  }
  jobs_.Answer(absl::CancelledError("CANCELLED"));
  EXPECT_EQ(
      GetJob().status().message(),
      "the call to the sequencer, node a (127.0.0.1:1), failed: the call was cancelled before "
      "its answer came");
  jobs_.Answer(absl::InternalError("Received RST_STREAM with error code 2"));
  EXPECT_THAT(std::string(GetJob().status().message()), HasSubstr("RST_STREAM with error code 2"));
}

TEST_F(RelayTest, CallsWithoutAStreamToTheSequencerNameIt) {
  const absl::Status got = GetJob().status();
  EXPECT_TRUE(absl::IsUnavailable(got)) << got;
  EXPECT_EQ(ReasonOf(got), kReasonWorldIncomplete);
  EXPECT_THAT(std::string(got.message()), HasSubstr("node a (127.0.0.1:1)"));
}

TEST_F(RelayTest, AVanishedSequencerIsReportedAsPeerLost) {
  client_->SetConnected("token");
  sequencer_->Shutdown(ToGrpc(Deadline::After(absl::ZeroDuration())));
  sequencer_->Wait();
  const absl::Status got = GetJob().status();
  EXPECT_TRUE(absl::IsAborted(got)) << got;
  EXPECT_EQ(ReasonOf(got), kReasonPeerLost);
  EXPECT_THAT(std::string(got.message()), HasSubstr("node a (127.0.0.1:1), was lost"));
}

TEST_F(RelayTest, WaitingCallsEndWhenTheStreamDoes) {
  client_->SetConnected("token");
  const absl::Status reason = WithReason(absl::AbortedError("node a was lost"), kReasonPeerLost);
  EXPECT_EQ(WaitJob([&](auto*) { client_->SetLost(reason, "waiting for it to come back"); }),
            reason);
  const absl::Status next = GetJob().status();
  EXPECT_EQ(ReasonOf(next), kReasonWorldIncomplete) << next;
  EXPECT_THAT(std::string(next.message()), HasSubstr("node a was lost; waiting for it"));
  client_->SetConnected("token");
  EXPECT_TRUE(GetJob().ok());
}

TEST_F(RelayTest, WaitingCallsEndWithTheDaemon) {
  client_->SetConnected("token");
  const absl::Status got = WaitJob([&](auto*) { client_.reset(); });
  EXPECT_TRUE(absl::IsUnavailable(got)) << got;
}

TEST_F(RelayTest, ACancelledCallReachesTheSequencer) {
  client_->SetConnected("token");
  const absl::Status got = WaitJob([&](grpc::ClientContext* context) { context->TryCancel(); });
  EXPECT_TRUE(absl::IsCancelled(got)) << got;
  EXPECT_TRUE(jobs_.cancelled.WaitFor(kPatience));
}

TEST_F(RelayTest, ACancelledStreamReachesTheSequencer) {
  client_->SetConnected("token");
  jobs_.ends_by_cancel = true;
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto stream = stub_->RunJobs(&context);
  EXPECT_TRUE(stream->Write(JobsCalled({"a"})));
  v1::RunJobsResponse response;
  EXPECT_TRUE(stream->Read(&response));
  context.TryCancel();
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_TRUE(jobs_.cancelled.WaitFor(kPatience));
}

TEST_F(RelayTest, MessagesPassInOrderInBothDirections) {
  client_->SetConnected("token");
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto stream = stub_->RunJobs(&context);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(stream->Write(JobsCalled({absl::StrCat(i), std::string(i * 1000, 'x')})));
    v1::RunJobsResponse response;
    ASSERT_TRUE(stream->Read(&response));
    ASSERT_EQ(response.outcomes_size(), 2);
    EXPECT_EQ(response.outcomes(0).request_id(), absl::StrCat(i));
    EXPECT_EQ(response.outcomes(1).request_id().size(), i * 1000u);
  }
  // The half-close is forwarded, too.
  EXPECT_TRUE(stream->WritesDone());
  v1::RunJobsResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(RelayTest, AStreamThatTheSequencerEndsDoesNotWaitForItsCaller) {
  client_->SetConnected("token");
  jobs_.Answer(absl::InvalidArgumentError("a job has no request_id"));
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto stream = stub_->RunJobs(&context);
  EXPECT_TRUE(stream->Write(JobsCalled({"a"})));
  v1::RunJobsResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(FromGrpc(stream->Finish()), jobs_.answer());
}

TEST_F(RelayTest, StreamsEndWhenTheSequencerIsLost) {
  client_->SetConnected("token");
  grpc::ClientContext context;
  SetDeadline(&context);
  const auto stream = stub_->RunJobs(&context);
  EXPECT_TRUE(stream->Write(JobsCalled({"a"})));
  v1::RunJobsResponse response;
  EXPECT_TRUE(stream->Read(&response));
  const absl::Status reason = WithReason(absl::AbortedError("node a was lost"), kReasonPeerLost);
  client_->SetLost(reason, "");
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(FromGrpc(stream->Finish()), reason);
}

TEST_F(RelayTest, EventsAndTheFinalStatusAreForwarded) {
  client_->SetConnected("token");
  for (const absl::Status& end : {absl::OkStatus(), absl::NotFoundError("no job")}) {
    jobs_.Answer(end);
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::WatchJobRequest request;
    request.set_after_event(1);
    const auto stream = stub_->WatchJob(&context, request);
    v1::WatchJobResponse response;
    for (int number : {2, 3}) {
      ASSERT_TRUE(stream->Read(&response));
      EXPECT_EQ(response.event().number(), number);
    }
    EXPECT_FALSE(stream->Read(&response));
    EXPECT_EQ(FromGrpc(stream->Finish()), end);
  }
}

TEST_F(RelayTest, ReflectionListsTheRelayedService) {
  grpc::GenericStub stub(channel_);
  grpc::ClientContext context;
  SetDeadline(&context);
  grpc::CompletionQueue queue;
  void* tag = nullptr;
  bool ok = false;
  auto call = stub.PrepareCall(
      &context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
  call->StartCall(nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  const grpc::Slice list_services(std::string("\x3a\x00", 2));
  call->Write(grpc::ByteBuffer(&list_services, 1), nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::ByteBuffer answer;
  call->Read(&answer, nullptr);
  ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
  grpc::Slice list;
  ASSERT_TRUE(answer.DumpToSingleSlice(&list).ok());
  EXPECT_THAT(std::string(reinterpret_cast<const char*>(list.begin()), list.size()),
              HasSubstr("agmm.v1.JobService"));
  context.TryCancel();
  grpc::Status status;
  call->Finish(&status, nullptr);
  queue.Next(&tag, &ok);
}

TEST_F(RelayTest, StatusIsAnsweredLocallyWithoutASequencer) {
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::GetStatusResponse status;
  const auto stub = v1::ClusterService::NewStub(channel_);
  ASSERT_TRUE(stub->GetStatus(&context, {}, &status).ok());
  EXPECT_FALSE(status.ready());
  EXPECT_THAT(status.reason(), HasSubstr("node a (127.0.0.1:1)"));
  EXPECT_EQ(status.nodes_size(), 1);
}

}  // namespace
}  // namespace agmm
