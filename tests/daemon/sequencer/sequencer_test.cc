// Membership and generations, over streams that only record the messages sent.
#include "daemon/sequencer/sequencer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/node/member.h"
#include "kernels/base/reason.h"
#include "tests/daemon/sequencer/sequencer_fixture.h"

namespace agmm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Applies `spoil` in a configuration that therefore has another hash.
std::function<void(v1::Hello*)> Other(std::function<void(v1::Hello*)> spoil) {
  return [spoil = std::move(spoil)](v1::Hello* hello) {
    spoil(hello);
    hello->set_config_hash("feed");
  };
}

TEST_F(SequencerTest, HelloIsRefusedWithTheFieldAndBothValues) {
  const std::string protocol = absl::StrCat(kProtocolVersion);
  const std::string format = absl::StrCat(kPlanFormatVersion);
  const struct {
    const char* field;
    std::function<void(v1::Hello*)> spoil;
    const char *yours, *mine;
  } cases[] = {
      {"protocol_version", [](v1::Hello* h) { h->set_protocol_version(77); }, "77",
       protocol.c_str()},
      {"plan_format_version", [](v1::Hello* h) { h->set_plan_format_version(77); }, "77",
       format.c_str()},
      {"message_version", [](v1::Hello* h) { h->set_message_version(77); }, "77", "1"},
      {"world.cluster", [](v1::Hello* h) { h->set_cluster("other"); }, "other", "demo"},
      {"world's config_hash", [](v1::Hello* h) { h->set_config_hash("feed"); }, "feed",
       "0123456789abcdef"},
      {"world.node[1].name", Other([](v1::Hello* h) { h->mutable_nodes(1)->set_name("c"); }), "c",
       "b"},
      {"world.node[0].address",
       Other([](v1::Hello* h) { h->mutable_nodes(0)->set_address("h:1"); }), "h:1",
       "127.0.0.1:7101"},
      {"world.node[1].devices", Other([](v1::Hello* h) { h->mutable_nodes(1)->set_devices(4); }),
       "4", "1"},
      {"world's number of nodes", Other([](v1::Hello* h) { h->add_nodes(); }), "3", "2"},
      {"world's number of nodes", Other([](v1::Hello* h) { h->clear_nodes(); }), "0", "2"},
      {"node", [](v1::Hello* h) { h->set_node(2); }, "2", "0 to 1"},
      {"node", [](v1::Hello* h) { h->set_node(-1); }, "-1", "0 to 1"},
      {"node_name", [](v1::Hello* h) { h->set_node_name("c"); }, "c", "b"},
      {"devices", [](v1::Hello* h) { h->add_devices(); }, "2", "1"},
      {"devices[0].heap_bytes", [](v1::Hello* h) { h->mutable_devices(0)->set_heap_bytes(-1); },
       "-1", "0 to 1125899906842624"},
      {"incarnation", [](v1::Hello* h) { h->set_incarnation("short"); }, "5 bytes", "16 bytes"},
      {"last_generation", [](v1::Hello* h) { h->set_last_generation(UINT64_MAX); },
       "18446744073709551615", "at most 4611686018427387904"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.field);
    v1::Hello hello = HelloOf(1);
    c.spoil(&hello);
    const std::shared_ptr<FakeLink> link = Join(hello);
    ASSERT_EQ(link->refusals.size(), 1u);
    EXPECT_EQ(link->refusals[0].field(), c.field);
    EXPECT_EQ(link->refusals[0].yours(), c.yours);
    EXPECT_EQ(link->refusals[0].mine(), c.mine);
    EXPECT_THAT(link->sent, IsEmpty());
  }
  EXPECT_EQ(CheckHello(config_, HelloOf(1)).field(), "");
}

TEST_F(SequencerTest, TheReasonForAMissingNodeIsKeptUntilItJoins) {
  a_ = Join(HelloOf(0));
  v1::Hello wrong = HelloOf(1);
  Other([](v1::Hello* hello) { hello->mutable_nodes(1)->set_devices(4); })(&wrong);
  Join(wrong);
  EXPECT_THAT(
      std::string(sequencer_.Complete().message()),
      HasSubstr(
          "waiting for node b (127.0.0.1:7102), which was refused: its world.node[1].devices is 4, "
          "mine is 1"));
  b_ = Join(HelloOf(1));
  EXPECT_THAT(std::string(sequencer_.Complete().message()), testing::Not(HasSubstr("refused")));
}

TEST_F(SequencerTest, AMemberRefusesAWorldWithUnknownNodes) {
  a_ = Join(HelloOf(0));
  b_ = Join(HelloOf(1));
  const v1::World world = a_->world();
  EXPECT_TRUE(CheckWorld(config_, world).ok()) << CheckWorld(config_, world);
  for (int node : {-1, 0, 2, 1 << 30}) {
    v1::World wrong = world;
    wrong.mutable_nodes(1)->set_node(node);
    EXPECT_THAT(std::string(CheckWorld(config_, wrong).message()),
                HasSubstr(absl::StrCat("lists node ", node)));
  }
  v1::World keyless = world;
  keyless.clear_key();
  EXPECT_THAT(std::string(CheckWorld(config_, keyless).message()),
              HasSubstr("its key has 0 bytes"));
}

TEST_F(SequencerTest, WorldBeginsWhenAllHaveJoined) {
  a_ = Join(HelloOf(0));
  EXPECT_EQ(a_->world().generation(), 0u);
  EXPECT_THAT(std::string(sequencer_.Complete().message()),
              HasSubstr("waiting for node b (127.0.0.1:7102)"));
  EXPECT_EQ(ReasonOf(sequencer_.Complete()), kReasonWorldIncomplete);
  EXPECT_TRUE(absl::IsUnavailable(sequencer_.Complete()));
  b_ = Join(HelloOf(1));
  EXPECT_EQ(a_->world().generation(), 1u);
  EXPECT_EQ(a_->world().nodes_size(), 2);
  EXPECT_EQ(a_->world().key().size(), 16u);
  EXPECT_EQ(a_->world().SerializeAsString(), b_->world().SerializeAsString());
  Ready(b_);
  EXPECT_FALSE(ready_);
  EXPECT_THAT(std::string(sequencer_.Complete().message()), HasSubstr("node a"));
  Ready(a_);
  EXPECT_TRUE(ready_);
  EXPECT_TRUE(sequencer_.Complete().ok());
  EXPECT_THAT(log_, ElementsAre("catalog ready", "scheduler ready"));
  ASSERT_EQ(sequencer_.ranks().size(), 3u);
  EXPECT_EQ(sequencer_.ranks()[0].heap_bytes, 4096);
  EXPECT_EQ(sequencer_.ranks()[2].heap_bytes, 8192);
  EXPECT_EQ(sequencer_.ranks()[2].node, 1);
}

TEST_F(SequencerTest, GenerationRisesAboveEveryKnownOne) {
  a_ = Join(HelloOf(0));
  b_ = Join(HelloOf(1, 'x', 41));
  EXPECT_EQ(b_->world().generation(), 42u);
}

TEST_F(SequencerTest, LostNodeEndsTheGenerationForTheOthers) {
  Form();
  sequencer_.OnLost(b_.get(), "its stream broke");
  EXPECT_THAT(log_, ElementsAre("scheduler ended", "catalog ended", "lost 1"));
  EXPECT_THAT(catalog_.last_lost, ElementsAre(1));
  EXPECT_TRUE(absl::IsAborted(catalog_.last_reason));
  EXPECT_EQ(ReasonOf(catalog_.last_reason), kReasonPeerLost);
  EXPECT_EQ(catalog_.last_reason.message(), "node b (127.0.0.1:7102) was lost: its stream broke");
  EXPECT_FALSE(ready_);
  EXPECT_EQ(sequencer_.generation(), 2u);
  EXPECT_EQ(a_->world().generation(), 2u);
  EXPECT_EQ(a_->world().nodes_size(), 1);
  EXPECT_EQ(a_->world().ended(), catalog_.last_reason.message());
  Ready(a_);
  EXPECT_THAT(std::string(sequencer_.Complete().message()),
              HasSubstr("waiting for node b (127.0.0.1:7102)"));
  EXPECT_EQ(sequencer_.ranks()[2].heap_bytes, 0);
}

TEST_F(SequencerTest, TheOtherNodesAreReadyWithoutAMissingOne) {
  Form();
  sequencer_.OnLost(b_.get(), "its stream broke");
  log_.clear();
  EXPECT_THAT(std::string(sequencer_.Ready({0, 1}).message()),
              HasSubstr("node a (127.0.0.1:7101)"));
  Ready(a_);
  EXPECT_THAT(log_, ElementsAre("catalog ready", "scheduler ready"));
  EXPECT_FALSE(ready_) << "the world is not complete";
  EXPECT_TRUE(sequencer_.Ready({0, 1}).ok());
  EXPECT_EQ(ReasonOf(sequencer_.Ready({0, 2})), kReasonWorldIncomplete);
  EXPECT_EQ(sequencer_.Ready({0, 2}).message(),
            "the world is not complete: waiting for node b (127.0.0.1:7102)");
  v1::GetStatusResponse status;
  sequencer_.FillStatus(&status);
  EXPECT_FALSE(status.ready());
  EXPECT_THAT(status.reason(), HasSubstr("; ranks 0-1 can be used meanwhile"));
}

TEST_F(SequencerTest, NothingIsReadyBeforeTheWorldWasCompleteOnce) {
  a_ = Join(HelloOf(0));
  EXPECT_EQ(ReasonOf(sequencer_.Ready({0})), kReasonWorldIncomplete);
  EXPECT_THAT(std::string(sequencer_.Ready({0}).message()), HasSubstr("node b"));
}

TEST_F(SequencerTest, ABrokenTransportMakesANodeJoinAgain) {
  // The sequencer's own node is never dropped, whichever node reports the broken connection.
  for (const auto& [teller, broken] : {std::pair{1, 0}, std::pair{0, 1}}) {
    Form();
    const uint64_t generation = sequencer_.generation();
    v1::MemberMessage message;
    message.set_generation(generation);
    message.add_reports()->mutable_peer_broken()->set_node(broken);
    message.mutable_reports(0)->mutable_peer_broken()->set_reason("connection reset");
    sequencer_.OnMessage(teller == 0 ? a_ : b_, message);
    EXPECT_TRUE(b_->closed);
    EXPECT_FALSE(a_->closed);
    EXPECT_EQ(ReasonOf(catalog_.last_reason), kReasonPeerLost);
    EXPECT_THAT(std::string(catalog_.last_reason.message()),
                AllOf(HasSubstr("node a"), HasSubstr("node b"), HasSubstr("connection reset")));
    EXPECT_GT(sequencer_.generation(), generation);
    b_ = Join(HelloOf(1, 'x', generation));
    Ready(a_);
    Ready(b_);
    EXPECT_TRUE(sequencer_.Complete().ok());
  }
}

TEST_F(SequencerTest, StoppingAnswersWaitingCalls) {
  Form();
  sequencer_.Stop();
  EXPECT_THAT(log_, ElementsAre("scheduler ended", "catalog ended"));
  EXPECT_EQ(ReasonOf(catalog_.last_reason), kReasonPeerLost);
  EXPECT_TRUE(absl::IsUnavailable(sequencer_.Complete()));
  sequencer_.OnLost(b_.get(), "its stream broke");
  EXPECT_EQ(log_.size(), 2u);
}

TEST_F(SequencerTest, ReturningNodeMakesANewGeneration) {
  Form();
  const std::string old_key = a_->world().key();
  sequencer_.OnLost(b_.get(), "its stream broke");
  Ready(a_);
  log_.clear();
  b_ = Join(HelloOf(1, 'y', 1));
  EXPECT_THAT(log_, ElementsAre("scheduler ended", "catalog ended"));
  EXPECT_EQ(a_->world().generation(), 3u);
  EXPECT_NE(a_->world().key(), old_key);
  log_.clear();
  Ready(a_);
  Ready(b_);
  EXPECT_THAT(log_, ElementsAre("catalog ready", "scheduler ready"));
  EXPECT_TRUE(ready_);
}

TEST_F(SequencerTest, NodesConnectOnceAllHaveDrained) {
  a_ = Join(HelloOf(0));
  b_ = Join(HelloOf(1));
  Drained(b_, "127.0.0.1:72");
  EXPECT_FALSE(a_->peers().has_value());
  Drained(a_, "127.0.0.1:71");
  for (const auto& link : {a_, b_}) {
    ASSERT_TRUE(link->peers().has_value());
    ASSERT_EQ(link->peers()->peers_size(), 2);
    EXPECT_EQ(link->peers()->peers(0).endpoint(), "127.0.0.1:71");
    EXPECT_EQ(link->peers()->peers(1).node(), 1);
    EXPECT_EQ(link->peers()->peers(1).endpoint(), "127.0.0.1:72");
  }
  EXPECT_FALSE(sequencer_.Complete().ok()) << "no path is made yet";
  v1::GetStatusResponse status;
  sequencer_.FillStatus(&status);
  EXPECT_EQ(status.nodes(1).transport_endpoint(), "127.0.0.1:72");
  // In the next generation, all drain again.
  a_->sent.clear();
  sequencer_.OnLost(b_.get(), "its stream broke");
  b_ = Join(HelloOf(1, 'y'));
  Drained(a_, "127.0.0.1:73");
  EXPECT_FALSE(a_->peers().has_value());
  Drained(b_, "127.0.0.1:74");
  EXPECT_EQ(a_->peers()->peers(0).endpoint(), "127.0.0.1:73");
}

TEST_F(SequencerTest, ABrokenPathIsNamedWhileTheWorldIsNotReady) {
  Form();
  v1::Report broken;
  broken.mutable_peer_broken()->set_node(1);
  broken.mutable_peer_broken()->set_reason("no answer from 127.0.0.1:72 within 10s");
  Send(a_, broken);
  b_ = Join(HelloOf(1));
  EXPECT_THAT(std::string(sequencer_.Complete().message()),
              HasSubstr("node b (127.0.0.1:7102) (before, the transport between node a "
                        "(127.0.0.1:7101) and node b (127.0.0.1:7102) broke: no answer from "
                        "127.0.0.1:72 within 10s)"));
  Ready(a_);
  Ready(b_);
  EXPECT_TRUE(sequencer_.Complete().ok());
}

TEST_F(SequencerTest, AnotherIncarnationWaitsUntilTheFirstIsLost) {
  Form();
  const std::shared_ptr<FakeLink> second = Join(HelloOf(1, 'y'));
  ASSERT_EQ(second->refusals.size(), 1u);
  EXPECT_EQ(second->refusals[0].field(), "incarnation");
  EXPECT_THAT(b_->refusals, IsEmpty());
  EXPECT_FALSE(b_->closed);
  EXPECT_THAT(log_, IsEmpty());
  sequencer_.OnLost(b_.get(), "its stream broke");
  EXPECT_THAT(log_, ElementsAre("scheduler ended", "catalog ended", "lost 1"));
  const std::shared_ptr<FakeLink> again = Join(HelloOf(1, 'y'));
  EXPECT_THAT(again->refusals, IsEmpty());
  EXPECT_EQ(again->world().nodes(1).incarnation(), std::string(16, 'y'));
}

TEST_F(SequencerTest, SameIncarnationMayJoinAgain) {
  Form();
  const std::shared_ptr<FakeLink> again = Join(HelloOf(1, 'x', 1));
  EXPECT_TRUE(b_->closed);
  EXPECT_THAT(b_->refusals, IsEmpty());
  Ready(a_);
  Ready(again);
  EXPECT_TRUE(sequencer_.Complete().ok());
}

TEST_F(SequencerTest, ReportsOfAnotherGenerationAreDroppedAndCounted) {
  Form();
  v1::MemberMessage message;
  message.add_reports()->mutable_launch_done();
  message.set_generation(1);
  sequencer_.OnMessage(b_, message);
  EXPECT_THAT(log_, ElementsAre("catalog report of 1", "scheduler report of 1"));
  log_.clear();
  for (uint64_t generation : {0, 2}) {
    message.set_generation(generation);
    sequencer_.OnMessage(b_, message);
  }
  EXPECT_THAT(log_, IsEmpty());
  EXPECT_EQ(metrics_.counter("world_stale_reports_total")->value(), 2);
}

TEST_F(SequencerTest, CommandsCarryTheGeneration) {
  Form();
  v1::Command command;
  command.mutable_drop_tensor()->set_tensor_id(5);
  sequencer_.Send(1, command);
  EXPECT_EQ(b_->sent.back().generation(), 1u);
  EXPECT_EQ(b_->sent.back().commands(0).drop_tensor().tensor_id(), 5u);
}

TEST_F(SequencerTest, StatusHasTheUsageOfANodesLastHeartbeatUntilItIsLost) {
  Form();
  v1::MemberMessage heartbeat;
  v1::NodeUsage* usage = heartbeat.mutable_heartbeat()->mutable_usage();
  usage->set_staging_bytes(5);
  for (int i = 0; i < 3; ++i) usage->add_devices()->set_allocation_count(7 + i);  // one too many
  usage->mutable_devices(0)->set_packed_bytes(1);
  usage->mutable_devices(0)->set_scratch_bytes(2);
  usage->mutable_devices(0)->set_pack_count(3);
  usage->mutable_devices(0)->set_failure("GPU 1 is lost");
  sequencer_.OnMessage(b_, heartbeat);
  v1::GetStatusResponse status;
  sequencer_.FillStatus(&status);
  EXPECT_EQ(status.nodes(0).staging_bytes(), 0);
  EXPECT_EQ(status.nodes(1).staging_bytes(), 5);
  const v1::DeviceStatus& device = status.nodes(1).devices(0);
  EXPECT_EQ(device.packed_bytes(), 1);
  EXPECT_EQ(device.scratch_bytes(), 2);
  EXPECT_EQ(device.pack_count(), 3);
  EXPECT_EQ(device.allocation_count(), 7);
  EXPECT_EQ(device.failure(), "GPU 1 is lost");
  sequencer_.OnLost(b_.get(), "it broke");
  status.Clear();
  sequencer_.FillStatus(&status);
  EXPECT_EQ(status.nodes(1).staging_bytes(), 0);
}

TEST_F(SequencerTest, StatusNamesThePresentNodes) {
  a_ = Join(HelloOf(0));
  v1::GetStatusResponse status;
  sequencer_.FillStatus(&status);
  EXPECT_FALSE(status.ready());
  EXPECT_THAT(status.reason(), HasSubstr("node b"));
  ASSERT_EQ(status.nodes_size(), 2);
  EXPECT_EQ(status.nodes(0).state(), v1::NodeStatus::STATE_JOINING);
  EXPECT_EQ(status.nodes(0).devices_size(), 2);
  EXPECT_EQ(status.nodes(1).state(), v1::NodeStatus::STATE_MISSING);
  EXPECT_EQ(status.nodes(1).devices(0).rank(), 2);
}

}  // namespace
}  // namespace agmm
