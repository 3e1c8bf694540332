// Connections to a daemon that is lost, comes back or never existed: calls that are safe to repeat
// are repeated, and take effect once.
#include "client/connect/connection.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "agmm/v1/job.grpc.pb.h"
#include "client/connect/job_watch.h"
#include "client/connect/program_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/reason.h"
#include "proto/convert/grpc_call.h"
#include "proto/convert/rpc_status.h"
#include "tests/support/patience.h"
#include "tests/support/proxy.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Holds>
void Await(Holds holds) {
  ASSERT_TRUE(Eventually(holds));
}

// A minimal daemon that counts the calls it receives.
class FakeDaemon final : public v1::JobService::Service,
                         public v1::TensorService::Service,
                         public v1::ClusterService::Service {
 public:
  FakeDaemon() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(static_cast<v1::TensorService::Service*>(this));
    builder.RegisterService(static_cast<v1::ClusterService::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~FakeDaemon() override { server_->Shutdown(ToGrpc(Deadline::After(absl::ZeroDuration()))); }
  int port() const { return port_; }

  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                         v1::GetStatusResponse* response) override {
    ++statuses;
    if (names_sequencer) response->add_nodes()->set_incarnation("first");
    return incomplete ? Error(WithReason(absl::UnavailableError("waiting for node b"),
                                         kReasonWorldIncomplete))
                      : grpc::Status::OK;
  }
  grpc::Status OpenSession(grpc::ServerContext* context, const v1::OpenSessionRequest* request,
                           grpc::ServerWriter<v1::SessionEvent>* writer) override {
    {
      std::lock_guard lock(mutex_);
      program_ = request->program();
    }
    v1::SessionEvent event;
    event.set_session_id("s");
    writer->Write(event);
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::OK;
  }
  grpc::Status SubmitJob(grpc::ServerContext* context, const v1::SubmitJobRequest*,
                         v1::Job* response) override {
    Hear(*context);
    response->set_job_id(++submits);
    return grpc::Status::OK;
  }
  grpc::Status DeleteTensor(grpc::ServerContext* context, const v1::DeleteTensorRequest*,
                            v1::DeleteTensorResponse*) override {
    Hear(*context);
    return ++deletes == 1 ? grpc::Status::OK : Error(absl::NotFoundError("no tensor 5"));
  }
  // Returns three sessions in all, one a page.
  grpc::Status ListSessions(grpc::ServerContext*, const v1::ListSessionsRequest* request,
                            v1::ListSessionsResponse* response) override {
    const uint64_t number = request->after_number() + 1;
    response->add_sessions()->set_number(number);
    if (number < 3) response->set_next_after_number(number);
    return grpc::Status::OK;
  }
  // Returns two tensors in all, for any page size.
  grpc::Status ListTensors(grpc::ServerContext*, const v1::ListTensorsRequest* request,
                           v1::ListTensorsResponse* response) override {
    const uint64_t id = request->after_tensor_id() + 1;
    response->add_tensors()->set_tensor_id(id);
    if (id < 2) response->set_next_after_tensor_id(id);
    return grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext* context, const v1::WatchJobRequest* request,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) override {
    Hear(*context);
    ++watches;
    for (int64_t number = std::min<int64_t>(request->after_event(), 3) + 1; number <= 4; ++number) {
      v1::WatchJobResponse response;
      if (number > request->after_event()) response.mutable_event()->set_number(number);
      if (number == 4) response.mutable_job()->set_state(v1::Job::STATE_SUCCEEDED);
      writer->Write(response);
      if (number == job_alone_after) {
        v1::WatchJobResponse job;
        job.mutable_job()->set_job_id(request->job_id());
        writer->Write(job);
        ++jobs_alone;
        while (number == job_alone_after && !context->IsCancelled())
          absl::SleepFor(absl::Milliseconds(1));
      }
      while (number == hold_watch_after && !context->IsCancelled())
        absl::SleepFor(absl::Milliseconds(1));
    }
    return grpc::Status::OK;
  }

  std::atomic<int> statuses = 0, submits = 0, deletes = 0, watches = 0;
  std::atomic<bool> incomplete = false, names_sequencer = true;
  std::atomic<int> hold_watch_after = 0, job_alone_after = 0, jobs_alone = 0;
  std::string program() {
    std::lock_guard lock(mutex_);
    return program_;
  }
  // The sequencer that each call about ids was sent with.
  std::vector<std::string> sequencers() {
    std::lock_guard lock(mutex_);
    return sequencers_;
  }

 private:
  void Hear(const grpc::ServerContext& context) {
    const auto sent = context.client_metadata().find(kSequencerKey);
    std::lock_guard lock(mutex_);
    sequencers_.emplace_back(sent == context.client_metadata().end()
                                 ? ""
                                 : std::string(sent->second.data(), sent->second.size()));
  }
  static grpc::Status Error(const absl::Status& status) {
    return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                        ToProto(status).SerializeAsString());
  }
  std::mutex mutex_;
  std::vector<std::string> sequencers_;
  std::string program_;  // of the last session
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class ConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(connection_.GetStatus().ok()); }
  // Runs `call`; breaks the connection once `arrived`, so that its answer is lost.
  template <typename Call, typename Arrived>
  void LoseTheAnswer(Call call, Arrived arrived) {
    proxy_.HoldAnswers();
    std::thread caller(call);
    Await(arrived);
    proxy_.Cut();
    caller.join();
  }

  // The numbers of job 7's events; `on_event` is called with each.
  std::vector<int64_t> Watch(const std::string& sequencer,
                             const std::function<void(int64_t)>& on_event) {
    std::vector<int64_t> numbers;
    const auto job = WatchJob(&connection_, {7, sequencer}, /*after_event=*/0,
                              Deadline::After(kPatience), [&](const v1::JobEvent& event) {
                                numbers.push_back(event.number());
                                on_event(event.number());
                                return true;
                              });
    EXPECT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job.value_or(v1::Job()).state(), v1::Job::STATE_SUCCEEDED);
    return numbers;
  }
  // Breaks the connection after an answer that has the job and no event.
  void CutAfterJobAlone(int64_t number) {
    if (number != 3) return;
    Await([&] { return daemon_.jobs_alone == 1; });
    proxy_.Cut();
  }

  FakeDaemon daemon_;
  Proxy proxy_{daemon_.port()};
  Connection connection_{*ResolveEndpoint(proxy_.endpoint())};
};

TEST_F(ConnectionTest, AListOfTensorsHasAllPages) {
  const auto list = connection_.ListTensors();
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->tensors_size(), 2);
  EXPECT_EQ(list->tensors(1).tensor_id(), 2);
}

TEST_F(ConnectionTest, AListOfSessionsHasAllPages) {
  const auto list = connection_.ListSessions();
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->sessions_size(), 3);
  EXPECT_EQ(list->sessions(2).number(), 3u);
  EXPECT_EQ(list->next_after_number(), 0u);
}

TEST_F(ConnectionTest, ASessionSaysWhoseItIs) {
  ASSERT_TRUE(connection_.OpenSession("train").ok());
  EXPECT_EQ(daemon_.program(), ProgramText("train"));
}

TEST_F(ConnectionTest, AReadIsRepeated) {
  absl::StatusOr<v1::GetStatusResponse> status;
  LoseTheAnswer([&] { status = connection_.GetStatus(); }, [&] { return daemon_.statuses == 2; });
  EXPECT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(daemon_.statuses, 3);
}

TEST_F(ConnectionTest, ASubmitIsRepeatedOnlyWithARequestId) {
  absl::StatusOr<v1::Job> job;
  v1::SubmitJobRequest request;
  LoseTheAnswer([&] { job = connection_.SubmitJob(request); },
                [&] { return daemon_.submits == 1; });
  EXPECT_EQ(job.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(job.status().message()), HasSubstr("was lost; see its log"));
  EXPECT_EQ(daemon_.submits, 1);

  ASSERT_TRUE(connection_.GetStatus().ok());  // the connection is open again
  request.set_request_id("r");
  LoseTheAnswer([&] { job = connection_.SubmitJob(request); },
                [&] { return daemon_.submits == 2; });
  EXPECT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(daemon_.submits, 3);
  // Names mean the same to every sequencer.
  EXPECT_THAT(daemon_.sequencers(), ElementsAre("", "", ""));
}

TEST_F(ConnectionTest, ACallForABareIdIsRepeatedOnlyAtTheKnownSequencer) {
  LoseTheAnswer([&] { connection_.DeleteTensor(5).IgnoreError(); },
                [&] { return daemon_.deletes == 1; });
  EXPECT_THAT(daemon_.sequencers(), ElementsAre("", "first"));

  daemon_.names_sequencer = false;
  Connection other(*ResolveEndpoint(proxy_.endpoint()));
  ASSERT_TRUE(other.GetStatus().ok());
  absl::Status status;
  LoseTheAnswer([&] { status = other.DeleteTensor(5); }, [&] { return daemon_.deletes == 3; });
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(daemon_.deletes, 3);
}

TEST_F(ConnectionTest, EveryAttemptForAnIdCarriesItsSequencer) {
  LoseTheAnswer(
      [&] {
        connection_.DeleteTensor({5, "before"}).IgnoreError();
      },
      [&] { return daemon_.deletes == 1; });
  EXPECT_THAT(daemon_.sequencers(), ElementsAre("before", "before"));
  daemon_.job_alone_after = 3;
  Watch("before", [&](int64_t number) { CutAfterJobAlone(number); });
  EXPECT_THAT(daemon_.sequencers(), ElementsAre("before", "before", "before", "before"));
}

TEST_F(ConnectionTest, ARepeatedDeleteSucceeds) {
  absl::Status status = absl::UnknownError("");
  LoseTheAnswer([&] { status = connection_.DeleteTensor(5); },
                [&] { return daemon_.deletes == 1; });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(absl::IsNotFound(connection_.DeleteTensor(5)));
}

TEST_F(ConnectionTest, ACallThatADaemonRefusesIsNotRepeated) {
  daemon_.incomplete = true;
  const absl::Status status = connection_.GetStatus().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(status), kReasonWorldIncomplete);
  EXPECT_EQ(daemon_.statuses, 2);
}

TEST_F(ConnectionTest, TheEndOfASessionEndsTheAttempts) {
  ASSERT_EQ(*connection_.OpenSession(), "s");
  absl::StatusOr<v1::GetStatusResponse> status;
  LoseTheAnswer([&] { status = connection_.GetStatus(); }, [&] { return daemon_.statuses == 2; });
  EXPECT_EQ(status.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.status().message()), HasSubstr("jobs and tensors ended"));
  EXPECT_EQ(daemon_.statuses, 2);
}

TEST_F(ConnectionTest, AnInterruptEndsTheWaitForADaemon) {
  proxy_.Stop();
  absl::Status status;
  std::thread caller([&] { status = connection_.WaitJob(1, Deadline::Infinite()).status(); });
  connection_.Interrupt();
  caller.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
}

TEST_F(ConnectionTest, ADeadlineBoundsTheAttempts) {
  proxy_.Stop();
  const absl::Status status = connection_.GetStatus(absl::Milliseconds(200)).status();
  EXPECT_THAT(status.code(), ::testing::AnyOf(absl::StatusCode::kUnavailable,
                                              absl::StatusCode::kDeadlineExceeded));
}

TEST_F(ConnectionTest, AWatchThatBreaksAfterAnEventlessAnswerLosesNoEvent) {
  daemon_.job_alone_after = 3;
  EXPECT_THAT(Watch("", [&](int64_t number) { CutAfterJobAlone(number); }),
              ElementsAre(1, 2, 3, 4));
}

TEST_F(ConnectionTest, AWatchResumesAfterTheLastEvent) {
  daemon_.hold_watch_after = 2;
  EXPECT_THAT(Watch("",
                    [&](int64_t number) {
                      if (number == 2) proxy_.Cut();
                    }),
              ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(daemon_.watches, 2);
}

TEST_F(ConnectionTest, ABackgroundWaitReceivesOnlyTheEnd) {
  Loop loop("a test");
  std::promise<absl::StatusOr<v1::Job>> ended;
  WatchJob(&connection_, &loop, 7, /*after_event=*/0, Deadline::After(kPatience), nullptr,
           [&](const absl::StatusOr<v1::Job>& job) { ended.set_value(job); });
  const auto job = ended.get_future().get();
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->state(), v1::Job::STATE_SUCCEEDED);
}

TEST(Connection, ACallToANeverStartedDaemonFailsAtOnce) {
  // A stopped proxy does not listen.
  Proxy proxy(1);
  proxy.Stop();
  Connection connection(*ResolveEndpoint(proxy.endpoint()));
  v1::SubmitJobRequest request;
  request.set_request_id("r");
  const absl::Status status = connection.SubmitJob(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("no daemon answers at"));
}

TEST_F(ConnectionTest, OneFailedConnectDoesNotMeanAMissingDaemon) {
  proxy_.RefuseOne();
  Connection other(*ResolveEndpoint(proxy_.endpoint()));
  const auto status = other.GetStatus();
  EXPECT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(proxy_.refused(), 1);
}

}  // namespace
}  // namespace agmm
