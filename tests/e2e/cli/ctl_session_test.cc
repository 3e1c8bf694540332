// agmmctl session: the connected clients, and the memory that they hold.
#include <csignal>

#include "tests/e2e/ctl.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

class CtlSession : public Ctl {
 protected:
  nlohmann::json Sessions() { return OkJson({"session", "list"})["sessions"]; }
  // Puts a tensor of 4 KiB on each of the world's 4 ranks.
  void PutIn(Connection* connection, const std::string& session, const std::string& name) {
    v1::FillTensorRequest request;
    request.mutable_fill()->set_kind(v1::Fill::KIND_UNIFORM);
    v1::CreateTensorRequest& put = *request.mutable_put();
    put.set_name(name);
    put.set_session_id(session);
    put.mutable_spec()->set_rows(64);
    put.mutable_spec()->set_cols(64);
    put.mutable_spec()->set_dtype(v1::DTYPE_F32);
    put.mutable_spec()->set_sharding("[M_x, K]");
    v1::MeshAxis* axis = put.mutable_spec()->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(4);
    const auto filled = connection->FillTensor(request);
    ASSERT_TRUE(filled.ok()) << filled.status();
  }
};

TEST_F(CtlSession, ListsWhoHoldsTheMemory) {
  EXPECT_THAT(Ok({"session", "list"}), StartsWith("no sessions and no tensors\n"));
  auto owner = world_.Connect(0);
  const auto session = owner->OpenSession("train.py");
  ASSERT_TRUE(session.ok()) << session.status();
  PutIn(owner.get(), *session, "W");
  PutIn(owner.get(), *session, "X");
  PutIn(owner.get(), "", "permanent");
  const nlohmann::json json = OkJson({"session", "list"});
  EXPECT_EQ(json["schema"], "agmm.session_list.v1");
  ASSERT_EQ(json["sessions"].size(), 1u) << json;
  const nlohmann::json& listed = json["sessions"][0];
  EXPECT_EQ(listed["session_id"], *session);
  EXPECT_EQ(listed["node"], 0);
  EXPECT_THAT(listed.value("program", ""), MatchesRegex("train.py .pid [0-9]+ on .*"));
  EXPECT_EQ(listed["tensor_count"], 2);
  EXPECT_EQ(listed["tensor_bytes"], 2 * 64 * 64 * 4);
  EXPECT_EQ(listed["job_count"], 0);
  ASSERT_EQ(json["permanent_tensors"].size(), 1u) << json;
  EXPECT_EQ(json["permanent_tensors"][0]["tensor_bytes"], 64 * 64 * 4);
  EXPECT_GT(json["memory"]["tensor_bytes"], 0);

  const std::string table = Ok({"session", "list"});
  EXPECT_THAT(table, HasSubstr("train.py (pid "));
  EXPECT_THAT(table, HasSubstr("(tensors without a session)"));
  EXPECT_THAT(table, HasSubstr("  n0  "));
  EXPECT_THAT(table, HasSubstr("all ranks"));
  owner.reset();
  EXPECT_TRUE(Eventually([&] { return Sessions().empty(); }));
}

TEST_F(CtlSession, OfAgmmctlHasItsCommand) {
  const auto bench =
      world_.StartCtl(1, {"bench", "--shape", "M=640,N=640,K=640", "--rounds", "100"});
  std::string program;
  EXPECT_TRUE(Eventually([&] {
    const nlohmann::json sessions = Sessions();
    if (!sessions.empty()) program = sessions[0].value("program", "");
    return !program.empty();
  }));
  EXPECT_THAT(program, StartsWith("agmmctl bench (pid "));
  bench->Signal(SIGINT);
  bench->Wait(kPatience);
  EXPECT_TRUE(Eventually([&] { return Sessions().empty(); }));
}

TEST_F(CtlSession, OfALostNodeVanishes) {
  auto lost = world_.Connect(1), kept = world_.Connect(0);
  ASSERT_TRUE(lost->OpenSession("lost").ok());
  ASSERT_TRUE(kept->OpenSession("kept").ok());
  EXPECT_EQ(Sessions().size(), 2u);
  world_.Kill(1);
  std::string left;
  EXPECT_TRUE(Eventually([&] {
    left = world_.Ctl(0, {"session", "list", "--json"}).out;
    return !absl::StrContains(left, "\"lost ");
  }));
  EXPECT_THAT(left, HasSubstr("\"kept (pid "));
}

TEST_F(CtlSession, OfAWorldWithoutItsSequencerIsAnError) {
  world_.Kill(0);
  ASSERT_TRUE(world_.WaitFor(1, "the loss", [](const auto& status) { return !status.ready(); }));
  ExpectError({"session", "list"}, 3, "waiting for");
}

}  // namespace
}  // namespace agmm
