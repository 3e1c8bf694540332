// The sequencer's answers to nodes and clients: leases whose caller disconnects at the worst
// moment, sessions that have ended, ids of an earlier sequencer, and calls that have waited for a
// measurement.
#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "agmm/v1/job.grpc.pb.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/measure/preset.h"
#include "daemon/rpc/services.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"
#include "proto/convert/grpc_call.h"
#include "tests/daemon/sequencer/catalog_fixture.h"
#include "tests/support/notification.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

class LocalSequencerTest : public CatalogTest {
 protected:
  LocalSequencerTest() {
    parts_.loop = &loop_;
    parts_.catalog = catalog_.get();
    parts_.placement = &placement_;
    parts_.sequencer = &sequencer_;
    Scheduler::Parts scheduler;
    scheduler.loop = &loop_;
    scheduler.planners = {&loop_, &loop_};
    scheduler.members = &members_;
    scheduler.placement = &placement_;
    scheduler.catalog = catalog_.get();
    scheduler.metrics = &metrics_;
    scheduler_ = std::make_unique<Scheduler>(scheduler);
    parts_.scheduler = scheduler_.get();
    sessions_ = std::make_unique<Sessions>(2, catalog_.get(), scheduler_.get());
    parts_.sessions = sessions_.get();
    parts_.turns = &turns_;
    Measurer::Parts measurer;
    measurer.loop = &loop_;
    measurer.worker = &worker_;
    measurer.members = &members_;
    measurer.placement = &placement_;
    measurer.metrics = &metrics_;
    measurer.is_idle = [] { return true; };
    measurer.preset = measure::PresetFor("cpu");
    measurer.hosts = {"host-a", "host-b"};
    measurer_ = std::make_unique<Measurer>(std::move(measurer));
    parts_.measurer = measurer_.get();
    calls_ = LocalCalls(parts_);
    services_.push_back(MakeTensorService(parts_, calls_));
    services_.push_back(MakeJobService(parts_));
    grpc::ServerBuilder builder;
    for (const auto& service : services_) builder.RegisterService(service.get());
    server_ = builder.BuildAndStart();
    tensors_ = v1::TensorService::NewStub(server_->InProcessChannel({}));
    jobs_ = v1::JobService::NewStub(server_->InProcessChannel({}));
    tensor_ = MakeReady("A").tensor_id();
  }
  ~LocalSequencerTest() override {
    server_->Shutdown();
    worker_.Stop();
    loop_.Stop();
  }

  absl::StatusOr<v1::BeginLeaseResponse> BeginWrite(
      const CallContext& ctx, const std::function<void()>& on_reply = [] {}) {
    v1::BeginLeaseRequest request;
    request.set_tensor_id(tensor_);
    request.set_write(true);
    absl::StatusOr<v1::BeginLeaseResponse> answer = absl::UnknownError("no answer");
    Notification answered;
    calls_.begin_lease(ctx, request, [&](Access access) {
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
    (calls_.*call)(ctx, request, [answer, answered](absl::StatusOr<Response> given) {
      *answer = std::move(given);
      answered->Notify();
    });
    if (!answered->WaitFor(absl::Seconds(30))) return absl::DeadlineExceededError("no answer");
    return *answer;
  }
  // A call of a client with ids of `sequencer`.
  template <typename Response, typename Stub, typename Request>
  static absl::Status Call(
      Stub* stub, grpc::Status (Stub::*call)(grpc::ClientContext*, const Request&, Response*),
      const Request& request, const std::string& sequencer = "", Response* response = nullptr) {
    grpc::ClientContext context;
    if (!sequencer.empty()) context.AddMetadata(kSequencerKey, sequencer);
    Response unused;
    return FromGrpc((stub->*call)(&context, request, response != nullptr ? response : &unused));
  }
  using Tensors = v1::TensorService::Stub;
  using Jobs = v1::JobService::Stub;
  absl::Status Open(const std::string& session, int node) {
    v1::OpenedSessionRequest request;
    request.set_session_id(session);
    request.set_node(node);
    return Ask<v1::OpenedSessionResponse>(&SequencerCalls::opened_session, request).status();
  }

  // Runs `task` on the loop after the tasks that were posted before, and what these post.
  template <typename Task>
  void Do(Task task) {
    Notification done;
    loop_.Post([&] { loop_.Post([&] { loop_.Post([&] { task(), done.Notify(); }); }); });
    done.Wait();
  }
  // Begins a measurement, and returns once it has memory; then calls wait until ReturnDevices.
  void HoldDevices() {
    Do([&] { measurer_->Measure(); });
    std::vector<FakeMembers::Sent> prepare;
    for (const Deadline give_up = Deadline::After(kPatience);
         prepare.empty() && !give_up.HasPassed();)
      Do([&] { prepare = members_.Take(v1::Command::kPreparePlan); });
    Do([&] {
      for (const auto& [node, command] : prepare) {
        v1::Report report;
        report.mutable_plan_prepared()->set_plan_id(command.prepare_plan().plan_id());
        measurer_->OnReport(node, report);
      }
      place_ = members_.Take(v1::Command::kPlaceTensor);
    });
    ASSERT_EQ(place_.size(), 2u);
  }
  void ReturnDevices() {
    Do([&] {
      for (const auto& [node, command] : place_)
        measurer_->OnReport(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
    });
  }
  // A call that waits for the devices.
  struct Waiting {
    Access answer = absl::UnknownError("no answer");
    Notification answered;
  };
  std::shared_ptr<Waiting> BeginWaiting(const CallContext& ctx,
                                        const v1::BeginLeaseRequest& request) {
    auto waiting = std::make_shared<Waiting>();
    calls_.begin_lease(ctx, request, [waiting](Access access) {
      waiting->answer = std::move(access);
      waiting->answered.Notify();
    });
    Do([&] { EXPECT_EQ(waiting->answer.status().message(), "no answer"); });
    return waiting;
  }

  uint64_t tensor_ = 0;
  std::vector<FakeMembers::Sent> place_;
  Metrics metrics_;
  Sequencer sequencer_{TwoNodes(), &metrics_};
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Measurer> measurer_;
  SequencerParts parts_;
  SequencerCalls calls_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Tensors> tensors_;
  std::unique_ptr<Jobs> jobs_;
  Loop loop_{"a test"}, worker_{"plans"};  // run on top of the above
  CallTurns turns_{&loop_};
};

TEST_F(LocalSequencerTest, AMissingHeapHasNoFreeBytes) {
  ASSERT_EQ(placement_.rank_count(), 4) << "placed in a world that was complete";
  absl::StatusOr<v1::GetStatusResponse> status;
  Notification answered;
  calls_.get_status({}, {}, [&](absl::StatusOr<v1::GetStatusResponse> given) {
    status = std::move(given);
    answered.Notify();
  });
  ASSERT_TRUE(answered.WaitFor(absl::Seconds(30)));
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

TEST_F(LocalSequencerTest, ALeaseGrantedWhileItsCallerLeavesIsEnded) {
  CallContext ctx;
  ASSERT_TRUE(BeginWrite(ctx, [&] { ctx.cancel->Cancel(absl::CancelledError("gone")); }).ok());
  EXPECT_TRUE(BeginWrite({}).ok());
}

TEST_F(LocalSequencerTest, ALeaseWhoseAnswerDidNotArriveIsEnded) {
  CallContext ctx;
  ASSERT_TRUE(BeginWrite(ctx).ok());
  ctx.cancel->Cancel(absl::CancelledError("the answer could not be sent"));
  const auto next = BeginWrite({});
  ASSERT_TRUE(next.ok());
  // No client had received the place to write to, so the contents are unchanged.
  Notification ended;
  loop_.Post([&] {
    EXPECT_EQ(End(next->lease_id(), false, /*untouched=*/true)->state(), v1::Tensor::STATE_READY);
    ended.Notify();
  });
  EXPECT_TRUE(ended.WaitFor(absl::Seconds(30)));
}

TEST_F(LocalSequencerTest, NothingNewBelongsToASessionThatHasEnded) {
  ASSERT_TRUE(Open("s", 1).ok());
  v1::CloseSessionRequest close;
  close.set_session_id("s");
  ASSERT_TRUE(Ask<v1::CloseSessionResponse>(&SequencerCalls::close_session, close).ok());

  v1::CreateTensorRequest create = TensorRequest("late", "[M_x, K]", 8, 8, MeshOf(4));
  create.set_session_id("s");
  v1::FillTensorRequest fill;
  *fill.mutable_put() = create;
  fill.mutable_fill()->set_kind(v1::Fill::KIND_INTEGERS);
  v1::BeginLeaseRequest put;
  *put.mutable_put() = create;
  v1::SubmitJobRequest submit;
  submit.set_spec("A[M_x, K] * B[K, N_x] -> C[M, N_x]");
  *submit.mutable_mesh() = create.spec().mesh();
  for (const char* name : {"A", "B", "C"}) submit.add_tensors()->set_name(name);
  submit.set_session_id("s");
  for (const absl::Status& status :
       {Call(tensors_.get(), &Tensors::CreateTensor, create),
        Call(tensors_.get(), &Tensors::FillTensor, fill),
        Ask<v1::BeginLeaseResponse>(&SequencerCalls::begin_lease, put).status(),
        Call(jobs_.get(), &Jobs::SubmitJob, submit)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_EQ(status.message(), "session s has ended; open a new one");
  }
  v1::ListTensorsResponse list;
  ASSERT_TRUE(
      Call(tensors_.get(), &Tensors::ListTensors, v1::ListTensorsRequest(), "", &list).ok());
  EXPECT_EQ(list.tensors_size(), 1);
}

TEST_F(LocalSequencerTest, ASessionThatEndsWhileACallWaitsForAMeasurementGetsNothing) {
  ASSERT_TRUE(Open("s", 1).ok());
  HoldDevices();
  v1::BeginLeaseRequest put;
  *put.mutable_put() = TensorRequest("late", "[M_x, K]", 8, 8, MeshOf(4));
  put.mutable_put()->set_session_id("s");
  const auto waiting = BeginWaiting({}, put);
  v1::CloseSessionRequest close;
  close.set_session_id("s");
  ASSERT_TRUE(Ask<v1::CloseSessionResponse>(&SequencerCalls::close_session, close).ok());
  ReturnDevices();
  // Its memory would be placed first.
  Do([&] { AnswerPlaced(); });
  ASSERT_TRUE(waiting->answered.WaitFor(kPatience));
  EXPECT_EQ(waiting->answer.status().message(), "session s has ended; open a new one");
  Do([&] { EXPECT_EQ(Named("late"), 0u); });
}

TEST_F(LocalSequencerTest, ACallIsNotRunIfItsCallerLeavesWhileItWaitsForAMeasurement) {
  HoldDevices();
  bool ran = false;
  absl::StatusOr<v1::Tensor> answer = absl::UnknownError("no answer");
  const auto create = OnLoop<v1::CreateTensorRequest, v1::Tensor>(
      parts_, [&ran](const auto&, const auto&, const auto& reply) {
        ran = true;
        reply(v1::Tensor());
      });
  CallContext ctx;
  create(ctx, v1::CreateTensorRequest(), [&](absl::StatusOr<v1::Tensor> given) { answer = given; });
  Do([&] { EXPECT_EQ(answer.status().message(), "no answer"); });
  ctx.cancel->Cancel(absl::CancelledError("gone"));
  ReturnDevices();
  Do([&] {
    EXPECT_EQ(answer.status().message(), "gone");
    EXPECT_FALSE(ran);
  });
}

TEST_F(LocalSequencerTest, ACallThatWaitsForAMeasurementRunsAfterIt) {
  HoldDevices();
  v1::BeginLeaseRequest write;
  write.set_tensor_id(tensor_);
  write.set_write(true);
  const auto waiting = BeginWaiting({}, write);
  ReturnDevices();
  ASSERT_TRUE(waiting->answered.WaitFor(kPatience));
  EXPECT_TRUE(waiting->answer.ok()) << waiting->answer.status();
}

TEST_F(LocalSequencerTest, ASessionIsClosedOnlyWithItsKey) {
  v1::OpenedSessionRequest open;
  open.set_session_id("s");
  open.set_node(1);
  open.set_key(77);
  ASSERT_TRUE(Ask<v1::OpenedSessionResponse>(&SequencerCalls::opened_session, open).ok());
  v1::CloseSessionRequest close;
  close.set_session_id("s");
  EXPECT_TRUE(absl::IsPermissionDenied(
      Ask<v1::CloseSessionResponse>(&SequencerCalls::close_session, close).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(Open("s", 1)));  // it is still open
  close.set_key(77);
  EXPECT_TRUE(Ask<v1::CloseSessionResponse>(&SequencerCalls::close_session, close).ok());
  EXPECT_TRUE(Open("s", 1).ok());
}

TEST_F(LocalSequencerTest, AListedSessionHasThePrincipalOfItsCall) {
  // No other field has these digits.
  constexpr uint64_t kKey = 7'707'770'777'077'777;
  CallContext ctx;
  ctx.principal = "uid:7";
  v1::OpenedSessionRequest open;
  open.set_session_id("s");
  open.set_node(1);
  open.set_key(kKey);
  open.set_program("train.py");
  ASSERT_TRUE(Ask<v1::OpenedSessionResponse>(&SequencerCalls::opened_session, open, ctx).ok());
  const auto list =
      Ask<v1::ListSessionsResponse>(&SequencerCalls::list_sessions, v1::ListSessionsRequest());
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->sessions_size(), 1);
  EXPECT_EQ(list->sessions(0).owner(), "uid:7");
  EXPECT_EQ(list->sessions(0).program(), "train.py");
  EXPECT_EQ(list->DebugString().find(absl::StrCat(kKey)), std::string::npos) << "the key is secret";
}

TEST_F(LocalSequencerTest, IdsOfAnEarlierSequencerAreRefused) {
  v1::GetTensorRequest get;
  get.mutable_tensor()->set_tensor_id(tensor_);
  v1::CancelJobRequest cancel;
  cancel.set_job_id(13);
  v1::DeleteTensorRequest erase;
  erase.set_tensor_id(tensor_);
  for (const auto& [status, what] :
       {std::pair{Call(tensors_.get(), &Tensors::GetTensor, get, "another"),
                  "tensor 1 was lost when node 0's daemon restarted; put the tensor again"},
        {Call(jobs_.get(), &Jobs::CancelJob, cancel, "another"),
         "job 13 was lost when node 0's daemon restarted; submit it again"},
        {Call(tensors_.get(), &Tensors::DeleteTensor, erase, "another"), "tensor 1 was lost"}}) {
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_EQ(ReasonOf(status), kReasonPeerLost);
    EXPECT_TRUE(absl::StrContains(status.message(), what)) << status;
  }
  EXPECT_TRUE(Call(tensors_.get(), &Tensors::GetTensor, get, sequencer_.incarnation()).ok());
  EXPECT_TRUE(Call(tensors_.get(), &Tensors::GetTensor, get).ok());
}

TEST_F(LocalSequencerTest, ASessionBelongsToANodeOfTheWorld) {
  EXPECT_EQ(Open("s", 2).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(Open("s", 1).ok());
}

TEST_F(LocalSequencerTest, AMessageThatCannotBeParsedIsRefusedWithASentenceByEveryMethod) {
  const auto channel = server_->InProcessChannel({});
  grpc::GenericStub stub(channel);
  const grpc::Slice garbage(std::string("\xff"));
  int methods = 0;
  for (const char* name : {"agmm.v1.TensorService", "agmm.v1.JobService"}) {
    const auto* service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    for (int i = 0; i < service->method_count(); ++i, ++methods) {
      const auto& method = *service->method(i);
      grpc::ClientContext context;
      grpc::CompletionQueue queue;
      grpc::ByteBuffer message(&garbage, 1);
      void* tag = nullptr;
      bool ok = false;
      auto call = stub.PrepareCall(&context, absl::StrCat("/", name, "/", method.name()), &queue);
      call->StartCall(nullptr);
      ASSERT_TRUE(queue.Next(&tag, &ok) && ok);
      call->WriteLast(message, grpc::WriteOptions(), nullptr);
      ASSERT_TRUE(queue.Next(&tag, &ok));
      grpc::Status status;
      call->Finish(&status, nullptr);
      ASSERT_TRUE(queue.Next(&tag, &ok));
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << method.full_name();
      EXPECT_EQ(status.error_message(),
                absl::StrCat("the daemon cannot read this message as ",
                             method.input_type()->full_name(), "; use a client of its version"));
    }
  }
  EXPECT_GE(methods, 12);
}

}  // namespace
}  // namespace agmm
