// The calls that count as failed.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "agmm/v1/job.grpc.pb.h"
#include "daemon/link/stream.h"
#include "daemon/observe/metrics.h"
#include "daemon/rpc/server.h"
#include "proto/channel/channel.h"
#include "tests/support/notification.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

// Ends of the streams that the test's service answers, by the job's id.
enum Kind : uint64_t { kSilent = 1, kSending, kNotFound, kCancelledHere };

class Watch final : public WriteStream<v1::WatchJobResponse> {
 public:
  Watch(grpc::CallbackServerContext* context, uint64_t kind, Notification* over)
      : ServerStream(context), kind_(kind), over_(over) {}

 private:
  void OnStart() override {
    Send({});
    if (kind_ == kNotFound) End(absl::NotFoundError("no such job"));
    if (kind_ == kCancelledHere) End(absl::CancelledError("its session has ended"));
  }
  void OnSent(v1::WatchJobResponse) override {
    if (kind_ == kSending && open()) Send({});
  }
  void OnOver() override { over_->Notify(); }

  const uint64_t kind_;
  Notification* const over_;
};

class Jobs final : public v1::JobService::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(
      grpc::CallbackServerContext* context, const v1::WatchJobRequest* request) override {
    return StartStream<Watch>(context, request->job_id(), over);
  }
  Notification* over = nullptr;
};

class CallCounter : public testing::Test {
 protected:
  CallCounter() {
    auto server = RpcServer::Start({"127.0.0.1:0"}, &metrics_, &members_, {&jobs_});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    EXPECT_TRUE(server_->Open().ok());
    stub_ = v1::JobService::NewStub(OpenChannel("127.0.0.1:" + std::to_string(server_->port())));
  }
  // Watches such a job, leaves after the first event if `leave`, and returns the number of failed
  // calls once the call has ended.
  int64_t FailuresAfter(Kind kind, bool leave) {
    Notification over;
    jobs_.over = &over;
    v1::WatchJobRequest request;
    request.set_job_id(kind);
    v1::WatchJobResponse response;
    grpc::ClientContext context;
    const auto stream = stub_->WatchJob(&context, request);
    stream->Read(&response);
    if (leave) context.TryCancel();
    EXPECT_FALSE(stream->Finish().ok());
    EXPECT_TRUE(over.WaitFor(kPatience));
    return metrics_.counter("rpcs_failed_total")->value();
  }

  MemberTokens members_;
  Metrics metrics_;
  Jobs jobs_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<v1::JobService::Stub> stub_;
};

TEST_F(CallCounter, AStreamThatItsClientEndsHasNotFailed) {
  for (int round = 0; round < 50; ++round) {
    EXPECT_EQ(FailuresAfter(kSilent, /*leave=*/true), 0);
    EXPECT_EQ(FailuresAfter(kSending, /*leave=*/true), 0);
  }
  EXPECT_EQ(metrics_.counter("rpcs_total")->value(), 100);
}

TEST_F(CallCounter, AStreamThatTheDaemonEndsWithAnErrorHasFailed) {
  EXPECT_EQ(FailuresAfter(kNotFound, /*leave=*/false), 1);
  EXPECT_EQ(FailuresAfter(kCancelledHere, /*leave=*/false), 2);
  EXPECT_EQ(metrics_.counter("rpcs_total")->value(), 2);
}

}  // namespace
}  // namespace agmm
