// Calls forwarded to a sequencer's daemon that the test plays.
#include "daemon/world/remote_control.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/rpc/call_context.h"
#include "daemon/rpc/status.h"
#include "kernels/base/status.h"
#include "proto/channel/channel.h"
#include "proto/convert/status.h"
#include "tests/daemon/notification.h"

namespace agmm {
namespace {

using testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

// Answers GetJob with what it is told to, and WaitJob never of its own accord.
class FakeJobs final : public v1::JobService::CallbackService {
 public:
  grpc::ServerUnaryReactor* GetJob(grpc::CallbackServerContext* context,
                                   const v1::GetJobRequest* request, v1::Job* response) override {
    metadata.clear();
    for (const auto& [key, value] : context->client_metadata())
      metadata[std::string(key.data(), key.size())] = std::string(value.data(), value.size());
    deadline = context->deadline();
    response->set_job_id(request->job_id());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpc(answer));
    return reactor;
  }
  grpc::ServerUnaryReactor* WaitJob(grpc::CallbackServerContext* context, const v1::WaitJobRequest*,
                                    v1::Job*) override {
    struct Waiting : grpc::ServerUnaryReactor {
      void OnCancel() override { Finish(grpc::Status(grpc::StatusCode::CANCELLED, "")); }
      void OnDone() override { delete this; }
    };
    waiting.Notify();
    return new Waiting;
  }

  absl::Status answer;
  std::map<std::string, std::string> metadata;
  std::chrono::system_clock::time_point deadline;
  Notification waiting;
};

class NoRunner final : public Runner {
 public:
  void SetTransport(Transport*, std::function<void()>) override {}
  void Prepare(const v1::PreparePlan&) override {}
  void Launch(const v1::LaunchJob&) override {}
  void Cancel(const v1::CancelLaunch&) override {}
  void Release(const v1::ReleasePlan&) override {}
  void EndGeneration(const absl::Status&, std::function<void()> drained) override { drained(); }
  std::vector<DeviceCounters> counters() const override { return {}; }
  Verdict Accept(int, const Message&, int64_t, Rows*) override { return Verdict::kDrop; }
  void Lost(int, const Message&, const absl::Status&) override {}
  void Arrived(int, const Message&, const absl::Status&) override {}
};

class FakeLink final : public SequencerLink {
 public:
  void Send(v1::MemberMessage message) override { sent.push_back(std::move(message)); }
  std::vector<v1::MemberMessage> sent;
};

// What a caller of RunJobs was told.
class Told final : public JobOutcomes {
 public:
  void Add(v1::JobOutcome outcome) override { added.push_back(std::move(outcome)); }
  void Flush() override { flushed = added.size(); }
  std::vector<v1::JobOutcome> added;
  size_t flushed = 0;
};

std::vector<v1::SubmitJobRequest> JobsCalled(const std::vector<std::string>& ids) {
  std::vector<v1::SubmitJobRequest> jobs;
  for (const std::string& id : ids) jobs.emplace_back().set_request_id(id);
  return jobs;
}

class RemoteControlTest : public testing::Test {
 protected:
  RemoteControlTest() {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&jobs_);
    server_ = builder.BuildAndStart();
    channel_ = OpenChannel("127.0.0.1:" + std::to_string(port));
    EXPECT_TRUE(channel_->WaitForConnected(absl::ToChronoTime(absl::Now() + kPatience)));
    remote_ = std::make_unique<RemoteControl>(channel_, "node a (127.0.0.1:1)", &view_);
  }
  ~RemoteControlTest() override { server_->Shutdown(std::chrono::system_clock::now()); }

  absl::StatusOr<v1::Job> GetJob(const CallContext& context = {}) {
    v1::GetJobRequest request;
    request.set_job_id(7);
    return Await(
        [&](Reply<v1::Job> reply) { remote_->GetJob(context, request, std::move(reply)); });
  }
  template <typename Call>
  static absl::StatusOr<v1::Job> Await(const Call& call) {
    absl::StatusOr<v1::Job> result = absl::UnknownError("no reply came");
    Notification replied;
    call([&](absl::StatusOr<v1::Job> job) {
      result = std::move(job);
      replied.Notify();
    });
    replied.Wait();
    return result;
  }

  FakeJobs jobs_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  Metrics metrics_;
  NoRunner runner_;
  StatusView view_{DefaultConfigFor(1, 1 << 20, "/x"), &runner_, nullptr, &metrics_};
  std::unique_ptr<RemoteControl> remote_;
  const std::shared_ptr<FakeLink> link_ = std::make_shared<FakeLink>();
};

TEST_F(RemoteControlTest, JobsGoByTheStreamAndTheirOutcomesFindWhoRunsThem) {
  remote_->SetConnected(link_);
  const auto first = std::make_shared<Told>(), second = std::make_shared<Told>();
  CallContext context;
  context.principal = "uid:7";
  context.sequencer = "s1";
  remote_->RunJobs(context, JobsCalled({"a", "b"}), first);
  remote_->RunJobs({}, JobsCalled({"c"}), second);
  ASSERT_EQ(link_->sent.size(), 2u);
  const v1::ForwardedJobs& forwarded = link_->sent[0].jobs(0);
  EXPECT_EQ(forwarded.principal(), "uid:7");
  EXPECT_EQ(forwarded.sequencer(), "s1");
  ASSERT_EQ(forwarded.jobs_size(), 2);
  EXPECT_EQ(forwarded.jobs(1).request_id(), "b");
  v1::SequencerMessage answer;
  for (const uint64_t number :
       {link_->sent[1].jobs(0).first_number(), forwarded.first_number() + 1, uint64_t{99}}) {
    v1::ForwardedOutcome* outcome = answer.add_outcomes();
    outcome->set_number(number);
    outcome->mutable_outcome()->mutable_job()->set_job_id(number);
  }
  remote_->OnOutcomes(answer.mutable_outcomes());
  ASSERT_EQ(first->added.size(), 1u);
  EXPECT_EQ(first->flushed, 1u);
  EXPECT_EQ(first->added[0].request_id(), "b");
  EXPECT_EQ(first->added[0].job().job_id(), forwarded.first_number() + 1);
  ASSERT_EQ(second->added.size(), 1u);
  EXPECT_EQ(second->added[0].request_id(), "c");
}

TEST_F(RemoteControlTest, JobsOfALongMessageTravelInSeveral) {
  remote_->SetConnected(link_);
  const auto told = std::make_shared<Told>();
  std::vector<v1::SubmitJobRequest> jobs = JobsCalled({"a", "b", "c", "d", "e"});
  for (v1::SubmitJobRequest& job : jobs) job.set_spec(std::string(700 << 10, 'A'));
  CallContext context;
  context.principal = "uid:7";
  remote_->RunJobs(context, jobs, told);
  v1::SequencerMessage answer;
  for (const v1::MemberMessage& message : link_->sent) {
    EXPECT_LE(message.ByteSizeLong(), size_t{2} << 20);
    EXPECT_EQ(message.jobs(0).principal(), "uid:7");
    for (int i = 0; i < message.jobs(0).jobs_size(); ++i) {
      v1::ForwardedOutcome* outcome = answer.add_outcomes();
      outcome->set_number(message.jobs(0).first_number() + i);
      outcome->mutable_outcome()->mutable_job()->set_spec(message.jobs(0).jobs(i).request_id());
    }
  }
  remote_->OnOutcomes(answer.mutable_outcomes());
  ASSERT_EQ(told->added.size(), jobs.size());
  for (size_t i = 0; i < jobs.size(); ++i) {
    EXPECT_EQ(told->added[i].request_id(), jobs[i].request_id());
    EXPECT_EQ(told->added[i].job().spec(), jobs[i].request_id());
  }
}

TEST_F(RemoteControlTest, ForwardedJobsEndWithTheStream) {
  const auto told = std::make_shared<Told>();
  remote_->RunJobs({}, JobsCalled({"early"}), told);
  ASSERT_EQ(told->flushed, 1u);
  EXPECT_EQ(ReasonOf(FromProto(told->added[0].error())), kReasonWorldIncomplete);
  remote_->SetConnected(link_);
  remote_->RunJobs({}, JobsCalled({"a"}), told);
  EXPECT_EQ(told->flushed, 1u);
  const absl::Status reason = WithReason(absl::AbortedError("node a was lost"), kReasonPeerLost);
  remote_->SetLost(reason, "waiting for it to come back");
  ASSERT_EQ(told->flushed, 2u);
  EXPECT_EQ(told->added[1].request_id(), "a");
  EXPECT_EQ(FromProto(told->added[1].error()), reason);
}

TEST_F(RemoteControlTest, ContextTravelsAlong) {
  remote_->SetConnected(link_);
  CallContext context;
  context.principal = "uid:7";
  context.request_id = "r1";
  context.traceparent = "00-1-2-3";
  context.session = "s1";
  context.deadline = absl::Now() + kPatience;
  const absl::StatusOr<v1::Job> job = GetJob(context);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->job_id(), 7u);
  EXPECT_EQ(jobs_.metadata[kPrincipalKey], "uid:7");
  EXPECT_EQ(jobs_.metadata[kRequestIdKey], "r1");
  EXPECT_EQ(jobs_.metadata[kTraceparentKey], "00-1-2-3");
  EXPECT_EQ(jobs_.metadata[kSessionKey], "s1");
  EXPECT_LE(absl::FromChrono(jobs_.deadline), context.deadline + absl::Seconds(1));
}

TEST_F(RemoteControlTest, ErrorsKeepCodeMessageAndReason) {
  remote_->SetConnected(link_);
  for (const absl::Status& error :
       {WithReason(absl::ResourceExhaustedError("asked 5, free 4"), kReasonHeapFull),
        WithReason(absl::UnavailableError("waiting for node b"), kReasonWorldIncomplete),
        absl::UnavailableError("without a reason"), absl::NotFoundError("no job 7")}) {
    jobs_.answer = error;
    const absl::Status got = GetJob().status();
    EXPECT_EQ(got, error) << got;
    EXPECT_EQ(ReasonOf(got), ReasonOf(error));
  }
}

TEST_F(RemoteControlTest, CallsBeforeTheStreamIsUpNameTheSequencer) {
  const absl::Status got = GetJob().status();
  EXPECT_TRUE(absl::IsUnavailable(got)) << got;
  EXPECT_EQ(ReasonOf(got), kReasonWorldIncomplete);
  EXPECT_THAT(std::string(got.message()), HasSubstr("node a (127.0.0.1:1)"));
}

TEST_F(RemoteControlTest, VanishedSequencerIsAPeerLost) {
  remote_->SetConnected(link_);
  server_->Shutdown(std::chrono::system_clock::now());
  server_->Wait();
  const absl::Status got = GetJob().status();
  EXPECT_TRUE(absl::IsAborted(got)) << got;
  EXPECT_EQ(ReasonOf(got), kReasonPeerLost);
  EXPECT_THAT(std::string(got.message()), HasSubstr("node a (127.0.0.1:1), was lost"));
}

TEST_F(RemoteControlTest, WaitingCallsEndWhenTheStreamDoes) {
  remote_->SetConnected(link_);
  const absl::Status reason = WithReason(absl::AbortedError("node a was lost"), kReasonPeerLost);
  const absl::StatusOr<v1::Job> job = Await([&](Reply<v1::Job> reply) {
    remote_->WaitJob({}, {}, std::move(reply));
    ASSERT_TRUE(jobs_.waiting.WaitFor(kPatience));
    remote_->SetLost(reason, "waiting for it to come back");
  });
  EXPECT_EQ(job.status(), reason);
  EXPECT_TRUE(absl::IsUnavailable(GetJob().status()));
  remote_->SetConnected(link_);
  EXPECT_TRUE(GetJob().ok());
}

TEST_F(RemoteControlTest, WaitingCallsEndWithTheDaemon) {
  remote_->SetConnected(link_);
  const absl::StatusOr<v1::Job> job = Await([&](Reply<v1::Job> reply) {
    remote_->WaitJob({}, {}, std::move(reply));
    ASSERT_TRUE(jobs_.waiting.WaitFor(kPatience));
    remote_.reset();
  });
  EXPECT_TRUE(absl::IsUnavailable(job.status())) << job.status();
}

TEST_F(RemoteControlTest, StatusIsAnsweredAloneWhenTheSequencerIsNotThere) {
  Notification replied;
  remote_->GetStatus({}, {}, [&](absl::StatusOr<v1::GetStatusResponse> status) {
    EXPECT_TRUE(status.ok()) << status.status();
    if (status.ok()) {
      EXPECT_FALSE(status->ready());
      EXPECT_THAT(status->reason(), HasSubstr("node a (127.0.0.1:1)"));
      EXPECT_EQ(status->nodes_size(), 1);
    }
    replied.Notify();
  });
  EXPECT_TRUE(replied.WaitFor(kPatience));
}

}  // namespace
}  // namespace agmm
