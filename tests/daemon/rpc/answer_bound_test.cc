// Answers that clients do not read take bounded memory.
#include "daemon/rpc/answer_bound.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agmm/v1/job.grpc.pb.h"
#include "daemon/link/stream.h"
#include "daemon/rpc/method_service.h"
#include "daemon/rpc/server.h"
#include "proto/channel/channel.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

constexpr size_t kAnswerBytes = 7 << 20;  // more than a client's window

v1::WatchJobResponse LargeAnswer() {
  v1::WatchJobResponse answer;
  answer.GetReflection()->MutableUnknownFields(&answer)->AddLengthDelimited(
      999, std::string(kAnswerBytes, 'x'));
  return answer;
}

class LargeJob final : public WriteStream<v1::WatchJobResponse> {
 public:
  explicit LargeJob(grpc::CallbackServerContext* context) : ServerStream(context) {}

 private:
  void OnStart() override {
    Send(LargeAnswer());
    End(absl::OkStatus());
  }
};

class LargeJobs final : public v1::JobService::CallbackService {
 public:
  grpc::ServerWriteReactor<v1::WatchJobResponse>* WatchJob(grpc::CallbackServerContext* context,
                                                           const v1::WatchJobRequest*) override {
    return StartStream<LargeJob>(context);
  }
};

TEST(AnswerBound, AnswersOfAStreamThatAreNotReadCountWithTheirMessages) {
  Metrics metrics;
  MemberTokens members;
  LargeJobs jobs;
  // One answer and the memory of its message fit into an owner's quarter.
  auto server =
      RpcServer::Start({.tcp = "127.0.0.1:0", .unread_answer_bytes = 4 * 10 * kAnswerBytes},
                       &metrics, &members, {&jobs});
  ASSERT_TRUE(server.ok()) << server.status();
  ASSERT_TRUE((*server)->Open().ok());
  const auto stub =
      v1::JobService::NewStub(OpenChannel(absl::StrCat("127.0.0.1:", (*server)->port())));
  const auto await = [&](const char* metric, int64_t value) {
    const Deadline end = Deadline::After(kPatience);
    while (metrics.counter(metric)->value() != value && !end.HasPassed())
      absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(metrics.counter(metric)->value(), value) << metric;
  };
  grpc::ClientContext unread, refused;
  const auto first = stub->WatchJob(&unread, {});
  await("rpc_unread_answer_bytes", 8 * static_cast<int64_t>(LargeAnswer().ByteSizeLong()));
  const auto second = stub->WatchJob(&refused, {});
  await("rpc_unread_answers_cancelled_total", 1);
  EXPECT_FALSE(second->Finish().ok());
  unread.TryCancel();
  EXPECT_FALSE(first->Finish().ok());
  await("rpc_unread_answer_bytes", 0);
}

TEST(AnswerBound, AnAnswersMessageIsFreedOnceSerialized) {
  const Outgoing<v1::WatchJobResponse> sent{LargeAnswer()};
  grpc::ByteBuffer bytes;
  bool own = false;
  using Traits = grpc::SerializationTraits<Outgoing<v1::WatchJobResponse>>;
  ASSERT_TRUE(Traits::Serialize(sent, &bytes, &own).ok());
  EXPECT_GT(bytes.Length(), kAnswerBytes);
  EXPECT_LT(sent.message.SpaceUsedLong(), 4096u);
}

}  // namespace
}  // namespace agmm
