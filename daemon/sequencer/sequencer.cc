#include "daemon/world/sequencer.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/world/protocol.h"
#include "daemon/world/status_view.h"
#include "kernels/base/random.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {
constexpr size_t kIncarnationBytes = 16;
constexpr int kKeyBytes = 16;
// So that sums over the ranks of a world do not overflow.
constexpr int64_t kMaxHeapBytes = int64_t{1} << 50;

v1::Refusal Differs(absl::string_view field, std::string yours, std::string mine) {
  v1::Refusal refusal;
  refusal.set_field(std::string(field));
  refusal.set_yours(std::move(yours));
  refusal.set_mine(std::move(mine));
  return refusal;
}

// Why the hashes of two worlds differ.
v1::Refusal WorldsDiffer(const Config& config, const v1::Hello& hello) {
  const int nodes = static_cast<int>(config.nodes.size());
  for (int i = 0; i < std::min(nodes, hello.nodes_size()); ++i) {
    const v1::ConfiguredNode& yours = hello.nodes(i);
    const NodeConfig& mine = config.nodes[i];
    if (yours.name() != mine.name)
      return Differs(absl::StrFormat("world.node[%d].name", i), yours.name(), mine.name);
    if (yours.address() != mine.address)
      return Differs(absl::StrFormat("world.node[%d].address", i), yours.address(), mine.address);
    if (yours.devices() != mine.devices) {
      return Differs(absl::StrFormat("world.node[%d].devices", i), absl::StrCat(yours.devices()),
                     absl::StrCat(mine.devices));
    }
  }
  if (hello.nodes_size() != nodes)
    return Differs("world's number of nodes", absl::StrCat(hello.nodes_size()),
                   absl::StrCat(nodes));
  return Differs("world's config_hash", hello.config_hash(), config.hash);
}
}  // namespace

v1::Refusal CheckHello(const Config& config, const v1::Hello& hello) {
  const struct {
    const char* field;
    int yours, mine;
  } versions[] = {{"protocol_version", hello.protocol_version(), kProtocolVersion},
                  {"plan_format_version", hello.plan_format_version(), kPlanFormatVersion},
                  {"message_version", hello.message_version(), kMessageVersion}};
  for (const auto& [field, yours, mine] : versions)
    if (yours != mine) return Differs(field, absl::StrCat(yours), absl::StrCat(mine));
  if (hello.cluster() != config.cluster)
    return Differs("world.cluster", hello.cluster(), config.cluster);
  if (hello.config_hash() != config.hash) return WorldsDiffer(config, hello);
  const int nodes = static_cast<int>(config.nodes.size());
  if (hello.node() < 0 || hello.node() >= nodes)
    return Differs("node", absl::StrCat(hello.node()), absl::StrFormat("0 to %d", nodes - 1));
  const NodeConfig& node = config.nodes[hello.node()];
  if (hello.node_name() != node.name) return Differs("node_name", hello.node_name(), node.name);
  if (hello.devices_size() != node.devices)
    return Differs("devices", absl::StrCat(hello.devices_size()), absl::StrCat(node.devices));
  for (int i = 0; i < node.devices; ++i) {
    const int64_t heap_bytes = hello.devices(i).heap_bytes();
    if (heap_bytes < 0 || heap_bytes > kMaxHeapBytes) {
      return Differs(absl::StrFormat("devices[%d].heap_bytes", i), absl::StrCat(heap_bytes),
                     absl::StrFormat("0 to %d", kMaxHeapBytes));
    }
  }
  if (hello.incarnation().size() != kIncarnationBytes) {
    return Differs("incarnation", absl::StrFormat("%d bytes", hello.incarnation().size()),
                   absl::StrFormat("%d bytes", kIncarnationBytes));
  }
  if (hello.last_generation() > kMaxGeneration) {
    return Differs("last_generation", absl::StrCat(hello.last_generation()),
                   absl::StrCat("at most ", kMaxGeneration));
  }
  return v1::Refusal();
}

Sequencer::Sequencer(const Config& config, Metrics* metrics, std::string incarnation)
    : config_(config),
      incarnation_(std::move(incarnation)),
      stale_reports_(metrics->counter("world_stale_reports_total")),
      nodes_lost_(metrics->counter("world_nodes_lost_total")),
      nodes_(config.nodes.size()) {
  SetRanks();
}

std::string Sequencer::Describe(int node) const {
  const NodeConfig& config = config_.nodes[node];
  return absl::StrFormat("node %s%s", config.name,
                         config.address.empty() ? "" : absl::StrFormat(" (%s)", config.address));
}

int Sequencer::NodeOf(const MemberLink* link) const {
  for (size_t i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].link.get() == link) return static_cast<int>(i);
  return -1;
}

bool Sequencer::AllJoined() const {
  return std::all_of(nodes_.begin(), nodes_.end(),
                     [](const Node& node) { return node.link != nullptr; });
}

absl::Status Sequencer::Complete() const {
  if (stopping_) return absl::UnavailableError("the sequencer's daemon is stopping");
  std::vector<std::string> missing, joining;
  for (int i = 0; i < node_count(); ++i) {
    if (nodes_[i].link == nullptr) {
      missing.push_back(
          nodes_[i].refused.empty()
              ? Describe(i)
              : absl::StrFormat("%s, which was refused: %s", Describe(i), nodes_[i].refused));
    } else if (!nodes_[i].ready) {
      joining.push_back(Describe(i));
    }
  }
  if (missing.empty() && joining.empty()) return absl::OkStatus();
  const std::string who = missing.empty()
                              ? absl::StrCat(absl::StrJoin(joining, ", "), " to be ready")
                              : absl::StrJoin(missing, ", ");
  return WithReason(
      absl::UnavailableError(absl::StrCat("the world is not complete: waiting for ", who)),
      kReasonWorldIncomplete);
}

void Sequencer::OnMessage(const std::shared_ptr<MemberLink>& link,
                          const v1::MemberMessage& message) {
  if (stopping_) return;
  if (message.has_hello()) OnHello(link, message.hello());
  const int node = NodeOf(link.get());
  if (node >= 0 && message.heartbeat().has_usage())
    nodes_[node].usage = message.heartbeat().usage();
  if (node >= 0)
    for (const v1::ForwardedJobs& jobs : message.jobs()) on_jobs_(link, jobs);
  for (const v1::Report& report : message.reports()) {
    // Reports may change the world under our feet.
    if (node < 0 || NodeOf(link.get()) != node || message.generation() != generation_) {
      stale_reports_->Add();
    } else if (report.has_world_ready()) {
      OnWorldReady(node);
    } else if (report.has_peer_broken()) {
      OnPeerBroken(node, report.peer_broken());
    } else {
      for (WorldListener* listener : listeners_) listener->OnReport(node, report);
    }
  }
}

void Sequencer::OnHello(const std::shared_ptr<MemberLink>& link, const v1::Hello& hello) {
  if (v1::Refusal refusal = CheckHello(config_, hello); !refusal.field().empty()) {
    const std::string why = absl::StrFormat("its %s is %s, mine is %s", refusal.field(),
                                            refusal.yours(), refusal.mine());
    link->Refuse(std::move(refusal));
    // It may come again and again; once is enough in the log.
    const bool one_of_us = hello.node() >= 0 && hello.node() < node_count();
    if (one_of_us && std::exchange(nodes_[hello.node()].refused, why) == why) return;
    spdlog::warn("refused a daemon that calls itself node {} \"{}\": {}", hello.node(),
                 hello.node_name(), why);
    return;
  }
  const int index = hello.node();
  Node& node = nodes_[index];
  if (node.link == link) return;
  if (const std::shared_ptr<MemberLink> old = node.link; old != nullptr) {
    const bool restarted = node.hello.incarnation() != hello.incarnation();
    Drop(index, restarted ? "it was started anew" : "it joined again");
    // Were there two daemons for one node, they would take turns for ever.
    if (restarted) {
      old->Refuse(
          Differs("incarnation", ToHex(node.hello.incarnation()), ToHex(hello.incarnation())));
    } else {
      old->Close();
    }
  }
  node.link = link;
  node.refused.clear();
  node.hello = hello;
  node.ready = false;
  seen_ = std::max(seen_, hello.last_generation());
  SetRanks();
  spdlog::info("{} joined, incarnation {}", Describe(index), ToHex(hello.incarnation()));
  v1::SequencerMessage welcome;
  welcome.set_generation(generation_);
  welcome.mutable_heartbeat();
  link->Send(std::move(welcome));
  if (!AllJoined()) return;
  if (generation_ > 0) {
    EndGeneration({index},
                  WithReason(absl::AbortedError(absl::StrFormat("generation %d ended: %s joined",
                                                                generation_, Describe(index))),
                             kReasonPeerLost));
  } else {
    generation_ = seen_ + 1;
  }
  SendWorld();
}

void Sequencer::OnLost(const MemberLink* link, const std::string& how) {
  if (const int node = NodeOf(link); node >= 0 && !stopping_) Drop(node, how);
}

// Joining again is how a node gets new connections to all others. It must not be the sequencer's
// own that goes.
void Sequencer::OnPeerBroken(int node, const v1::PeerBroken& broken) {
  const int lost = broken.node() == 0 ? node : broken.node();
  if (lost <= 0 || lost >= node_count() || nodes_[lost].link == nullptr) return;
  Lose(lost, absl::StrFormat("the transport between %s and %s broke: %s", Describe(node),
                             Describe(broken.node()), broken.reason()));
}

void Sequencer::Lose(int node, const std::string& why) {
  const std::shared_ptr<MemberLink> link = nodes_[node].link;
  if (link == nullptr || stopping_) return;
  if (node != 0) {
    Drop(node, why);
    link->Close();
    return;
  }
  // Its own stream goes only with the daemon: the world begins anew once it has drained.
  spdlog::warn("{} is given up: {}", Describe(node), why);
  EndGeneration(
      {},
      WithReason(absl::AbortedError(absl::StrFormat("%s was given up: %s", Describe(node), why)),
                 kReasonPeerLost));
  SendWorld();
}

void Sequencer::Stop() {
  if (std::exchange(stopping_, true) || generation_ == 0) return;
  EndGeneration(
      {},
      WithReason(absl::AbortedError(absl::StrFormat("the sequencer, %s, is stopping", Describe(0))),
                 kReasonPeerLost));
}

void Sequencer::Drop(int index, const std::string& how) {
  Node& node = nodes_[index];
  node.link = nullptr;
  node.ready = false;
  node.usage.Clear();
  SetRanks();
  nodes_lost_->Add();
  const absl::Status reason =
      WithReason(absl::AbortedError(absl::StrFormat("%s was lost: %s", Describe(index), how)),
                 kReasonPeerLost);
  spdlog::warn("{}", std::string(reason.message()));
  // Before the first world nothing can have begun.
  if (generation_ == 0) return on_node_lost_(index);
  EndGeneration({index}, reason);
  on_node_lost_(index);
  SendWorld();
}

void Sequencer::EndGeneration(const std::vector<int>& lost, const absl::Status& reason) {
  generation_ = std::max(generation_, seen_) + 1;
  for (Node& node : nodes_) node.ready = false;
  if (std::exchange(complete_, false)) on_ready_(false);
  for (auto it = listeners_.rbegin(); it != listeners_.rend(); ++it)
    (*it)->OnGenerationEnded(lost, reason);
}

void Sequencer::SendWorld() {
  v1::Command command;
  v1::World* world = command.mutable_world();
  world->set_generation(generation_);
  world->set_key(RandomBytes(kKeyBytes));
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].link == nullptr) continue;
    v1::WorldNode* node = world->add_nodes();
    node->set_node(static_cast<int>(i));
    node->set_incarnation(nodes_[i].hello.incarnation());
    node->set_transport_address(nodes_[i].hello.transport_address());
    *node->mutable_devices() = nodes_[i].hello.devices();
  }
  for (int i = 0; i < node_count(); ++i) Send(i, command);
}

void Sequencer::Send(int node, v1::Command command) {
  if (nodes_[node].link == nullptr) return;
  v1::SequencerMessage message;
  message.set_generation(generation_);
  *message.add_commands() = std::move(command);
  nodes_[node].link->Send(std::move(message));
}

void Sequencer::OnWorldReady(int node) {
  nodes_[node].ready = true;
  if (complete_ || !Complete().ok()) return;
  complete_ = true;
  spdlog::info("world complete: generation {}, {} nodes, {} ranks", generation_, nodes_.size(),
               ranks_.size());
  for (WorldListener* listener : listeners_) listener->OnReady();
  on_ready_(true);
}

void Sequencer::SetRanks() {
  ranks_.clear();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const bool there = nodes_[i].link != nullptr;
    for (int device = 0; device < config_.nodes[i].devices; ++device) {
      WorldRank& rank = ranks_.emplace_back();
      rank.node = static_cast<int>(i);
      if (!there) continue;
      const v1::DeviceHello& hello = nodes_[i].hello.devices(device);
      rank.heap_bytes = hello.heap_bytes();
      rank.device = absl::StrCat(hello.kind(), ": ", hello.description());
    }
  }
}

void Sequencer::FillStatus(v1::GetStatusResponse* status) const {
  status->set_generation(generation_);
  const absl::Status complete = Complete();
  status->set_ready(complete.ok());
  status->set_reason(std::string(complete.message()));
  int rank = 0;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    v1::NodeStatus* out = status->add_nodes();
    out->set_index(static_cast<int>(i));
    out->set_name(config_.nodes[i].name);
    out->set_address(config_.nodes[i].address);
    out->set_state(node.link == nullptr ? v1::NodeStatus::STATE_MISSING
                   : node.ready         ? v1::NodeStatus::STATE_READY
                                        : v1::NodeStatus::STATE_JOINING);
    if (node.link != nullptr) out->set_incarnation(ToHex(node.hello.incarnation()));
    for (int device = 0; device < config_.nodes[i].devices; ++device) {
      v1::DeviceStatus* to = out->add_devices();
      to->set_rank(rank++);
      if (node.link == nullptr) continue;
      const v1::DeviceHello& from = node.hello.devices(device);
      to->set_kind(from.kind());
      to->set_description(from.description());
      to->set_thread_count(from.thread_count());
      to->set_heap_bytes(from.heap_bytes());
    }
    SetUsage(node.usage, out);
  }
}

}  // namespace agmm
