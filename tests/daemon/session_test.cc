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
  explicit Session(std::shared_ptr<grpc::Channel> channel)
      : stub(v1::ClusterService::NewStub(channel)), reader(stub->OpenSession(&context, {})) {
    v1::SessionEvent event;
    if (reader->Read(&event)) id = event.session_id();
  }
  ~Session() {
    context.TryCancel();
    if (!ended) End().IgnoreError();
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
