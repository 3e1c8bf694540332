// Membership and generations, over streams that only record the messages sent.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/link/protocol.h"
#include "daemon/sequencer/sequencer.h"

namespace agmm {

struct FakeLink final : MemberLink {
  void Send(v1::SequencerMessage message) override { sent.push_back(std::move(message)); }
  void Refuse(v1::Refusal refusal) override { refusals.push_back(std::move(refusal)); }
  void Close() override { closed = true; }

  // The last World that was sent, or one of generation 0.
  v1::World world() const {
    for (auto it = sent.rbegin(); it != sent.rend(); ++it)
      for (const v1::Command& command : it->commands())
        if (command.has_world()) return command.world();
    return {};
  }

  // The last ConnectPeers that was sent.
  std::optional<v1::ConnectPeers> peers() const {
    for (auto it = sent.rbegin(); it != sent.rend(); ++it)
      for (const v1::Command& command : it->commands())
        if (command.has_connect_peers()) return command.connect_peers();
    return std::nullopt;
  }

  std::vector<v1::SequencerMessage> sent;
  std::vector<v1::Refusal> refusals;
  bool closed = false;
};

struct FakeListener final : WorldListener {
  FakeListener(std::string name, std::vector<std::string>* log) : name(std::move(name)), log(log) {}
  void OnGenerationEnded(const std::vector<int>& lost, const absl::Status& reason) override {
    log->push_back(name + " ended");
    last_lost = lost;
    last_reason = reason;
  }
  void OnReady() override { log->push_back(name + " ready"); }
  void OnReport(int node, const v1::Report&) override {
    log->push_back(absl::StrCat(name, " report of ", node));
  }
  const std::string name;
  std::vector<std::string>* const log;
  std::vector<int> last_lost;
  absl::Status last_reason;
};

class SequencerTest : public testing::Test {
 protected:
  SequencerTest() {
    sequencer_.SetListeners({&catalog_, &scheduler_});
    sequencer_.OnReadyChanged([this](bool ready) { ready_ = ready; });
    sequencer_.OnNodeLost([this](int node) { log_.push_back(absl::StrCat("lost ", node)); });
  }

  static Config TwoNodes() {
    Config config;
    config.cluster = "demo";
    config.hash = "0123456789abcdef";
    config.nodes = {{"a", "127.0.0.1:7101", 2}, {"b", "127.0.0.1:7102", 1}};
    return config;
  }
  v1::Hello HelloOf(int node, char incarnation = 'x', uint64_t last_generation = 0) const {
    v1::Hello hello;
    hello.set_cluster("demo");
    hello.set_config_hash("0123456789abcdef");
    hello.set_node(node);
    hello.set_node_name(config_.nodes[node].name);
    hello.set_incarnation(std::string(16, incarnation));
    hello.set_protocol_version(kProtocolVersion);
    hello.set_plan_format_version(kPlanFormatVersion);
    hello.set_message_version(kMessageVersion);
    hello.set_last_generation(last_generation);
    for (int i = 0; i < config_.nodes[node].devices; ++i)
      hello.add_devices()->set_heap_bytes(4096 * (node + 1));
    for (const NodeConfig& configured : config_.nodes) {
      v1::ConfiguredNode* added = hello.add_nodes();
      added->set_name(configured.name);
      added->set_address(configured.address);
      added->set_devices(configured.devices);
    }
    return hello;
  }
  std::shared_ptr<FakeLink> Join(const v1::Hello& hello) {
    auto link = std::make_shared<FakeLink>();
    v1::MemberMessage message;
    *message.mutable_hello() = hello;
    sequencer_.OnMessage(link, message);
    return link;
  }
  // Sends a report in the generation of the last World.
  void Send(const std::shared_ptr<FakeLink>& link, const v1::Report& report) {
    v1::MemberMessage message;
    message.set_generation(link->world().generation());
    *message.add_reports() = report;
    sequencer_.OnMessage(link, message);
  }
  void Ready(const std::shared_ptr<FakeLink>& link) {
    v1::Report report;
    report.mutable_world_ready();
    Send(link, report);
  }
  void Drained(const std::shared_ptr<FakeLink>& link, const std::string& endpoint) {
    v1::Report report;
    report.mutable_world_drained()->mutable_port()->set_endpoint(endpoint);
    Send(link, report);
  }
  // Both nodes joined and ready.
  void Form() {
    a_ = Join(HelloOf(0));
    b_ = Join(HelloOf(1));
    Ready(a_);
    Ready(b_);
    ASSERT_TRUE(sequencer_.Complete().ok()) << sequencer_.Complete();
    log_.clear();
  }

  const Config config_ = TwoNodes();
  Metrics metrics_;
  std::vector<std::string> log_;
  FakeListener catalog_{"catalog", &log_}, scheduler_{"scheduler", &log_};
  Sequencer sequencer_{config_, &metrics_};
  bool ready_ = false;
  std::shared_ptr<FakeLink> a_, b_;
};

}  // namespace agmm
