// Sessions, through any daemon: their tensors and jobs end with their stream, their daemon or their
// sequencer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "kernels/base/reason.h"
#include "proto/convert/grpc_call.h"
#include "tests/daemon/world_harness.h"

namespace agmm {
namespace {

// An open session through one daemon.
struct Session {
  explicit Session(std::shared_ptr<grpc::Channel> channel, const std::string& program = "")
      : stub(v1::ClusterService::NewStub(channel)),
        reader(stub->OpenSession(&context, Request(program))) {
    v1::SessionEvent event;
    if (reader->Read(&event)) id = event.session_id();
  }
  ~Session() {
    context.TryCancel();
    if (!ended) End().IgnoreError();
  }
  static v1::OpenSessionRequest Request(const std::string& program) {
    v1::OpenSessionRequest request;
    request.set_program(program);
    return request;
  }
  // Waits for the end of the stream.
  absl::Status End() {
    ended = true;
    return FromGrpc(reader->Finish());
  }
  grpc::ClientContext context;
  std::unique_ptr<v1::ClusterService::Stub> stub;
  std::unique_ptr<grpc::ClientReader<v1::SessionEvent>> reader;
  std::string id;
  bool ended = false;
};

class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    for (int node : {0, 1, 2}) EXPECT_TRUE(world_.Start(node).ok());
    world_.WaitReady(2);
  }
  // Creates a tensor on rank 0 only, which only the end of its session removes.
  absl::Status CreateTensor(const std::string& session) {
    v1::CreateTensorRequest request;
    request.set_session_id(session);
    request.mutable_spec()->set_rows(64);
    request.mutable_spec()->set_cols(64);
    request.mutable_spec()->set_dtype(v1::DTYPE_F32);
    request.mutable_spec()->set_sharding("[M, K]");
    v1::MeshAxis* axis = request.mutable_spec()->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(1);
    grpc::ClientContext context;
    v1::Tensor tensor;
    return FromGrpc(
        v1::TensorService::NewStub(world_.Channel(0))->CreateTensor(&context, request, &tensor));
  }
  // Returns the sessions that `node` lists.
  absl::StatusOr<v1::ListSessionsResponse> List(int node, int page_size = 0) {
    grpc::ClientContext context;
    context.set_deadline(ToGrpc(Deadline::After(kPatience)));
    v1::ListSessionsRequest request;
    request.set_page_size(page_size);
    v1::ListSessionsResponse list;
    const absl::Status status = FromGrpc(
        v1::ClusterService::NewStub(world_.Channel(node))->ListSessions(&context, request, &list));
    if (!status.ok()) return status;
    return list;
  }
  std::vector<std::string> Programs(int node) {
    std::vector<std::string> programs;
    const auto list = List(node);
    EXPECT_TRUE(list.ok()) << list.status();
    if (list.ok())
      for (const v1::Session& session : list->sessions()) programs.push_back(session.program());
    return programs;
  }
  int Tensors() {
    grpc::ClientContext context;
    v1::ListTensorsResponse list;
    const grpc::Status status =
        v1::TensorService::NewStub(world_.Channel(0))->ListTensors(&context, {}, &list);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return list.tensors_size();
  }
  TestWorld world_{3};
};

TEST_F(SessionTest, TensorsEndWithTheStream) {
  for (int node : {0, 1}) {
    SCOPED_TRACE(node);
    Session other(world_.Channel(2));
    auto session = std::make_unique<Session>(world_.Channel(node));
    ASSERT_EQ(session->id.size(), 32u);
    ASSERT_NE(session->id, other.id);
    ASSERT_TRUE(CreateTensor(session->id).ok());
    ASSERT_TRUE(CreateTensor(other.id).ok());
    EXPECT_EQ(Tensors(), 2);
    session.reset();
    EXPECT_TRUE(Eventually([&] { return Tensors() == 1; }));
    EXPECT_EQ(Tensors(), 1);
  }
}

TEST_F(SessionTest, TensorsEndWithTheDaemonOfTheSession) {
  Session session(world_.Channel(1));
  ASSERT_TRUE(CreateTensor(session.id).ok());
  world_.Stop(1);
  EXPECT_TRUE(Eventually([&] { return Tensors() == 0; }));
}

TEST_F(SessionTest, EveryNodeListsTheSessionsOfAll) {
  Session first(world_.Channel(1), "train.py (pid 7 on b)");
  ASSERT_FALSE(first.id.empty());
  auto second = std::make_unique<Session>(world_.Channel(2),
                                          "gr\xc3\xb6\xc3\x9f"
                                          "e");
  ASSERT_FALSE(second->id.empty());
  Session third(world_.Channel(0));
  ASSERT_TRUE(CreateTensor(first.id).ok());
  for (int node : {0, 1, 2}) {
    SCOPED_TRACE(node);
    const auto list = List(node);
    ASSERT_TRUE(list.ok()) << list.status();
    ASSERT_EQ(list->sessions_size(), 3);
    const v1::Session& session = list->sessions(0);
    EXPECT_EQ(session.session_id(), first.id);
    EXPECT_EQ(session.node(), 1);
    EXPECT_THAT(session.owner(), testing::StartsWith("ipv4:127.0.0.1:"));
    EXPECT_EQ(session.program(), "train.py (pid 7 on b)");
    EXPECT_EQ(session.tensor_count(), 1);
    EXPECT_EQ(session.tensor_bytes(), 64 * 64 * 4);
    EXPECT_EQ(list->sessions(1).program(),
              "gr\xc3\xb6\xc3\x9f"
              "e");
    EXPECT_EQ(list->sessions(2).node(), 0);
    EXPECT_LT(list->sessions(1).number(), list->sessions(2).number());
    EXPECT_EQ(List(node, 2)->next_after_number(), list->sessions(1).number());
    EXPECT_THAT(std::string(List(node, 1001).status().message()),
                testing::HasSubstr("page_size is 1001"));
  }
  second.reset();
  EXPECT_TRUE(Eventually([&] { return Programs(1).size() == 2; }));
  world_.Stop(1);
  EXPECT_TRUE(Eventually([&] { return Programs(2) == std::vector<std::string>{""}; }));
  world_.Stop(0);
  EXPECT_TRUE(Eventually([&] { return ReasonOf(List(2).status()) == kReasonWorldIncomplete; }));
}

TEST_F(SessionTest, AHostileNameOpensNoSession) {
  for (int node : {0, 1}) {
    SCOPED_TRACE(node);
    for (const auto& [program, why] :
         {std::pair(std::string(129, 'p'), "program has 129 bytes; at most 128"),
          {"a\x1b[2J", "program has the control character U+001B at byte 1"},
          {"\xe2\x80\xae", "program has the control character U+202E at byte 0"}}) {
      Session session(world_.Channel(node), program);
      EXPECT_EQ(session.id, "");
      const absl::Status refusal = session.End();
      EXPECT_TRUE(absl::IsInvalidArgument(refusal)) << refusal;
      EXPECT_THAT(std::string(refusal.message()), testing::HasSubstr(why));
    }
    EXPECT_EQ(List(node)->sessions_size(), 0);
  }
}

TEST_F(SessionTest, StreamEndsWhenTheSequencerIsLost) {
  Session session(world_.Channel(1));
  world_.Stop(0);
  v1::SessionEvent event;
  EXPECT_FALSE(session.reader->Read(&event));
  const absl::Status status = session.End();
  EXPECT_TRUE(absl::IsAborted(status)) << status;
  EXPECT_EQ(ReasonOf(status), kReasonPeerLost);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("node a"));
}

TEST(SessionBounds, OneOwnerHasAQuarterOfTheOpenSessions) {
  TestWorld world(1);
  Config config = world.ConfigOf(0);
  config.max_sessions = 8;
  ASSERT_TRUE(world.Start(0, config, [](absl::Status) {}).ok());
  world.WaitReady(0);
  // All over connections of their own, from one host.
  Session first(world.Channel(0));
  auto second = std::make_unique<Session>(world.Channel(0));
  ASSERT_FALSE(first.id.empty());
  ASSERT_FALSE(second->id.empty());
  Session third(world.Channel(0));
  EXPECT_EQ(third.id, "");
  const absl::Status refusal = third.End();
  EXPECT_TRUE(absl::IsResourceExhausted(refusal)) << refusal;
  EXPECT_THAT(std::string(refusal.message()),
              testing::AllOf(testing::HasSubstr("2 sessions of ipv4:127.0.0.1 are open"),
                             testing::HasSubstr("2 is the limit"),
                             testing::HasSubstr("raise local.sessions")));
  second.reset();
  EXPECT_TRUE(Eventually([&] { return !Session(world.Channel(0)).id.empty(); }));
}

}  // namespace
}  // namespace agmm
