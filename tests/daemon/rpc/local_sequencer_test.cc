// What a caller leaves behind: accesses whose caller vanishes at the worst moment, sessions that
// have ended.
#include "daemon/world/local_control.h"

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/daemon/catalog_fixture.h"
#include "tests/daemon/notification.h"

namespace agmm {
namespace {

class LocalControlTest : public CatalogTest {
 protected:
  LocalControlTest() {
    LocalControl::Parts parts;
    parts.loop = &loop_;
    parts.catalog = catalog_.get();
    parts.placement = &placement_;
    parts.sequencer = &sequencer_;
    Scheduler::Parts scheduler;
    scheduler.loop = scheduler.planner = &loop_;
    scheduler.members = &members_;
    scheduler.placement = &placement_;
    scheduler.catalog = catalog_.get();
    scheduler.metrics = &metrics_;
    scheduler_ = Scheduler::Create(scheduler);
    parts.scheduler = scheduler_.get();
    control_ = std::make_unique<LocalControl>(parts);
    tensor_ = MakeReady("A").tensor_id();
  }
  ~LocalControlTest() override { loop_.Stop(); }

  absl::StatusOr<v1::BeginAccessResponse> BeginWrite(
      const CallContext& ctx, const std::function<void()>& on_reply = [] {}) {
    v1::BeginAccessRequest request;
    request.set_tensor_id(tensor_);
    request.set_write(true);
    absl::StatusOr<v1::BeginAccessResponse> answer = absl::UnknownError("no answer");
    Notification answered;
    control_->BeginAccess(ctx, request, [&](Access access) {
      answer = std::move(access);
      on_reply();
      answered.Notify();
    });
    if (!answered.WaitFor(absl::Seconds(30))) return absl::DeadlineExceededError("no answer");
    return answer;
  }

  static Config TwoNodes() {
    Config config;
    config.cluster = "demo";
    config.nodes = {{"a", "127.0.0.1:7101", 2}, {"b", "127.0.0.1:7102", 2}};
    return config;
  }
  template <typename Response, typename Request, typename Call>
  absl::StatusOr<Response> Ask(Call call, const Request& request, const CallContext& ctx = {}) {
    auto answer = std::make_shared<absl::StatusOr<Response>>(absl::UnknownError("no answer"));
    auto answered = std::make_shared<Notification>();
    (control_.get()->*call)(ctx, request, [answer, answered](absl::StatusOr<Response> given) {
      *answer = std::move(given);
      answered->Notify();
    });
    if (!answered->WaitFor(absl::Seconds(30))) return absl::DeadlineExceededError("no answer");
    return *answer;
  }
  absl::Status Open(const std::string& session, int node) {
    v1::OpenedSessionRequest request;
    request.set_session_id(session);
    request.set_node(node);
    return Ask<v1::OpenedSessionResponse>(&LocalControl::OpenedSession, request).status();
  }

  uint64_t tensor_ = 0;
  Metrics metrics_;
  Sequencer sequencer_{TwoNodes(), &metrics_};
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<LocalControl> control_;
  Loop loop_;  // runs on top of the above
};

TEST_F(LocalControlTest, AHeapThatIsMissingHasNothingFree) {
  ASSERT_EQ(placement_.rank_count(), 4) << "placed in a world that was complete";
  const auto status = Ask<v1::GetStatusResponse>(&LocalControl::GetStatus, v1::GetStatusRequest());
  ASSERT_TRUE(status.ok());
  ASSERT_EQ(status->nodes_size(), 2);
  for (const v1::NodeStatus& node : status->nodes()) {
    EXPECT_EQ(node.state(), v1::NodeStatus::STATE_MISSING);
    for (const v1::DeviceStatus& device : node.devices()) {
      EXPECT_EQ(device.heap_bytes(), 0);
      EXPECT_EQ(device.heap_free_bytes(), 0);
      EXPECT_EQ(device.heap_largest_free_bytes(), 0);
      EXPECT_EQ(device.tensor_bytes(), 0);
    }
  }
}

TEST_F(LocalControlTest, AnAccessGrantedAsItsCallerGoesIsEnded) {
  CallContext ctx;
  ASSERT_TRUE(BeginWrite(ctx, [&] { ctx.cancel->Cancel(absl::CancelledError("gone")); }).ok());
  EXPECT_TRUE(BeginWrite({}).ok());
}

TEST_F(LocalControlTest, AnAccessWhoseAnswerDidNotArriveIsEnded) {
  CallContext ctx;
  ASSERT_TRUE(BeginWrite(ctx).ok());
  ctx.cancel->Cancel(absl::CancelledError("the answer could not be sent"));
  const auto next = BeginWrite({});
  ASSERT_TRUE(next.ok());
  // Nobody had heard where to write: the contents are what they were.
  Notification ended;
  loop_.Post([&] {
    EXPECT_EQ(End(next->access_id(), false, /*untouched=*/true)->state(), v1::Tensor::STATE_READY);
    ended.Notify();
  });
  EXPECT_TRUE(ended.WaitFor(absl::Seconds(30)));
}

TEST_F(LocalControlTest, NothingNewBelongsToASessionThatHasEnded) {
  ASSERT_TRUE(Open("s", 1).ok());
  v1::CloseSessionRequest close;
  close.set_session_id("s");
  ASSERT_TRUE(Ask<v1::CloseSessionResponse>(&LocalControl::CloseSession, close).ok());

  v1::CreateTensorRequest create = TensorRequest("late", "[M_x, K]", 8, 8, MeshOf(4));
  create.set_session_id("s");
  v1::FillTensorRequest fill;
  *fill.mutable_put() = create;
  v1::BeginAccessRequest put;
  *put.mutable_put() = create;
  v1::SubmitJobRequest submit;
  submit.set_session_id("s");
  for (const absl::Status& status :
       {Ask<v1::Tensor>(&LocalControl::CreateTensor, create).status(),
        Ask<v1::Tensor>(&LocalControl::FillTensor, fill).status(),
        Ask<v1::BeginAccessResponse>(&LocalControl::BeginAccess, put).status(),
        Ask<v1::Job>(&LocalControl::SubmitJob, submit).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(status.message(), "session s has ended; open a new one");
  }
  EXPECT_EQ(Ask<v1::ListTensorsResponse>(&LocalControl::ListTensors, v1::ListTensorsRequest())
                ->tensors_size(),
            1);
}

TEST_F(LocalControlTest, ASessionIsClosedByWhoKnowsItsKeyAlone) {
  v1::OpenedSessionRequest open;
  open.set_session_id("s");
  open.set_node(1);
  open.set_key(77);
  ASSERT_TRUE(Ask<v1::OpenedSessionResponse>(&LocalControl::OpenedSession, open).ok());
  v1::CloseSessionRequest close;
  close.set_session_id("s");
  EXPECT_TRUE(absl::IsPermissionDenied(
      Ask<v1::CloseSessionResponse>(&LocalControl::CloseSession, close).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(Open("s", 1)));  // it is still open
  close.set_key(77);
  EXPECT_TRUE(Ask<v1::CloseSessionResponse>(&LocalControl::CloseSession, close).ok());
  EXPECT_TRUE(Open("s", 1).ok());
}

TEST_F(LocalControlTest, IdsOfAnEarlierSequencerAreRefused) {
  v1::GetTensorRequest get;
  get.mutable_tensor()->set_tensor_id(tensor_);
  v1::CancelJobRequest cancel;
  cancel.set_job_id(13);
  v1::DeleteTensorRequest erase;
  erase.set_tensor_id(tensor_);
  CallContext before;
  before.sequencer = "another";
  for (const auto& [status, what] :
       {std::pair{Ask<v1::Tensor>(&LocalControl::GetTensor, get, before).status(),
                  "tensor 1 belonged"},
        {Ask<v1::Job>(&LocalControl::CancelJob, cancel, before).status(),
         "job 13 belonged to the sequencer of before its restart; it is gone: submit it again"},
        {Ask<v1::DeleteTensorResponse>(&LocalControl::DeleteTensor, erase, before).status(),
         "tensor 1 belonged"}}) {
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_EQ(ReasonOf(status), kReasonPeerLost);
    EXPECT_TRUE(absl::StrContains(status.message(), what)) << status;
  }
  CallContext now;
  now.sequencer = sequencer_.incarnation();
  EXPECT_TRUE(Ask<v1::Tensor>(&LocalControl::GetTensor, get, now).ok());
  EXPECT_TRUE(Ask<v1::Tensor>(&LocalControl::GetTensor, get).ok());
}

TEST_F(LocalControlTest, ASessionIsOfANodeOfTheWorld) {
  EXPECT_EQ(Open("s", 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Open("s", 1).ok());
}

}  // namespace
}  // namespace agmm
