#include "daemon/sequencer/sequencer.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/link/protocol.h"
#include "daemon/link/usage.h"
#include "kernels/base/reason.h"
#include "kernels/base/units.h"
#include "kernels/schedule/problem.h"

namespace agmm {
namespace {
constexpr size_t kIncarnationBytes = 16;
constexpr int kKeyBytes = 16;
// Bounds heaps so that sums over the ranks of a world do not overflow.
constexpr int64_t kMaxHeapBytes = int64_t{1} << 50;

v1::Refusal RefusalOf(absl::string_view field, std::string yours, std::string mine) {
  v1::Refusal refusal;
  refusal.set_field(std::string(field));
  refusal.set_yours(std::move(yours));
  refusal.set_mine(std::move(mine));
  return refusal;
}

}  // namespace

v1::Refusal CheckHello(const Config& config, const v1::Hello& hello) {
  std::vector<v1::Refusal> fields;  // the first one that differs is the refusal
  const auto add = [&](absl::string_view name, const auto& yours, const auto& mine) {
    fields.push_back(RefusalOf(name, absl::StrCat(yours), absl::StrCat(mine)));
  };
  add("protocol_version", hello.protocol_version(), kProtocolVersion);
  add("plan_format_version", hello.plan_format_version(), kPlanFormatVersion);
  add("message_version", hello.message_version(), kMessageVersion);
  add("world.cluster", hello.cluster(), config.cluster);
  const int nodes = static_cast<int>(config.nodes.size());
  if (hello.config_hash() != config.hash) {
    for (int i = 0; i < std::min(nodes, hello.nodes_size()); ++i) {
      const std::string node = absl::StrFormat("world.node[%d].", i);
      add(node + "name", hello.nodes(i).name(), config.nodes[i].name);
      add(node + "address", hello.nodes(i).address(), config.nodes[i].address);
      add(node + "devices", hello.nodes(i).devices(), config.nodes[i].devices);
    }
    add("world's number of nodes", hello.nodes_size(), nodes);
    add("world's config_hash", hello.config_hash(), config.hash);
  }
  if (hello.node() < 0 || hello.node() >= nodes) {
    add("node", hello.node(), absl::StrFormat("0 to %d", nodes - 1));
  } else {
    add("node_name", hello.node_name(), config.nodes[hello.node()].name);
    add("devices", hello.devices_size(), config.nodes[hello.node()].devices);
  }
  for (int i = 0; i < hello.devices_size(); ++i) {
    const int64_t heap_bytes = hello.devices(i).heap_bytes();
    if (heap_bytes < 0 || heap_bytes > kMaxHeapBytes) {
      add(absl::StrFormat("devices[%d].heap_bytes", i), heap_bytes,
          absl::StrFormat("0 to %d", kMaxHeapBytes));
    }
  }
  add("incarnation", absl::StrCat(hello.incarnation().size(), " bytes"),
      absl::StrCat(kIncarnationBytes, " bytes"));
  if (hello.last_generation() > kMaxGeneration)
    add("last_generation", hello.last_generation(), absl::StrCat("at most ", kMaxGeneration));
  for (const v1::Refusal& field : fields)
    if (field.yours() != field.mine()) return field;
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
  return WaitingFor([](int) { return true; });
}

absl::Status Sequencer::Ready(const std::vector<int>& ranks) const {
  // Before the first generation the heaps of the missing nodes are not known.
  if (generation_ == 0) return Complete();
  return WaitingFor([&](int node) {
    return nodes_[node].link != nullptr || std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
             return ranks_[rank].node == node;
           });
  });
}

absl::Status Sequencer::WaitingFor(absl::FunctionRef<bool(int node)> needs) const {
  if (stopping_) return absl::UnavailableError("the sequencer's daemon is stopping");
  std::vector<std::string> missing, joining;
  for (int i = 0; i < node_count(); ++i) {
    if (!needs(i)) continue;
    if (nodes_[i].link == nullptr) {
      missing.push_back(nodes_[i].refused.empty()
                            ? config_.Describe(i)
                            : absl::StrFormat("%s, which was refused: %s", config_.Describe(i),
                                              nodes_[i].refused));
    } else if (!nodes_[i].ready) {
      joining.push_back(
          nodes_[i].broken.empty()
              ? config_.Describe(i)
              : absl::StrFormat("%s (before, %s)", config_.Describe(i), nodes_[i].broken));
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
  for (const v1::Report& report : message.reports()) {
    // A report may change the world.
    if (node < 0 || NodeOf(link.get()) != node || message.generation() != generation_) {
      stale_reports_->Add();
    } else if (report.has_world_drained()) {
      OnWorldDrained(node, report.world_drained());
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
    // A refused daemon keeps trying; its refusal is logged once.
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
    // The stream of a daemon that has ended breaks or falls silent; the next attempt then succeeds.
    if (node.hello.incarnation() != hello.incarnation()) {
      link->Refuse(
          RefusalOf("incarnation", ToHex(hello.incarnation()), ToHex(node.hello.incarnation())));
      const std::string why = absl::StrCat(
          "a daemon already runs as this node; refused incarnation ", ToHex(hello.incarnation()));
      if (std::exchange(node.refused, why) != why) {
        spdlog::warn("refused a second daemon as {}, which is in the world; stop one of the two",
                     config_.Describe(index));
      }
      return;
    }
    Drop(index, "it joined again");
    old->Close();
  }
  node.link = link;
  node.refused.clear();
  node.hello = hello;
  node.ready = false;
  seen_ = std::max(seen_, hello.last_generation());
  SetRanks();
  spdlog::info("{} joined, version {}, incarnation {}", config_.Describe(index), hello.version(),
               ToHex(hello.incarnation()));
  v1::SequencerMessage welcome;
  welcome.set_generation(generation_);
  welcome.mutable_heartbeat();
  link->Send(std::move(welcome));
  if (generation_ > 0) {
    EndGeneration({index}, absl::StrFormat("generation %d ended: %s joined", generation_,
                                           config_.Describe(index)));
  } else if (AllJoined()) {
    generation_ = seen_ + 1;
  } else {
    return;
  }
  SendWorld();
}

void Sequencer::OnLost(const MemberLink* link, const std::string& how) {
  if (const int node = NodeOf(link); node >= 0 && !stopping_) Drop(node, how);
}

// A node gets new connections to all others by joining again. The sequencer's own node cannot do
// that, so the other node is dropped.
void Sequencer::OnPeerBroken(int node, const v1::PeerBroken& broken) {
  const int lost = broken.node() == 0 ? node : broken.node();
  if (lost <= 0 || lost >= node_count() || nodes_[lost].link == nullptr) return;
  const std::string why =
      absl::StrFormat("the transport between %s and %s broke: %s", config_.Describe(node),
                      config_.Describe(broken.node()), broken.reason());
  nodes_[lost].broken = why;
  Lose(lost, why);
}

void Sequencer::Lose(int node, const std::string& why) {
  const std::shared_ptr<MemberLink> link = nodes_[node].link;
  if (link == nullptr || stopping_) return;
  if (node != 0) {
    Drop(node, why);
    link->Close();
    return;
  }
  // The sequencer's own node stays joined; a new generation begins once it has drained.
  spdlog::warn("dropping {}: {}", config_.Describe(node), why);
  EndGeneration({}, absl::StrFormat("%s was dropped: %s", config_.Describe(node), why));
  SendWorld();
}

void Sequencer::Stop() {
  if (std::exchange(stopping_, true) || generation_ == 0) return;
  EndGeneration({}, absl::StrFormat("the sequencer, %s, is stopping", config_.Describe(0)));
}

void Sequencer::Drop(int index, const std::string& how) {
  Node& node = nodes_[index];
  node.link = nullptr;
  node.refused.clear();
  node.ready = false;
  node.usage.Clear();
  SetRanks();
  nodes_lost_->Add();
  const std::string pause = pauses_ == nullptr ? "" : pauses_->Recent(PauseNanos());
  const std::string why = pause.empty()
                              ? absl::StrFormat("%s was lost: %s", config_.Describe(index), how)
                              : absl::StrFormat("%s, and lost the connection to %s meanwhile: %s",
                                                pause, config_.Describe(index), how);
  spdlog::warn("{}", why);
  // No job or lease exists before the first generation.
  if (generation_ == 0) return on_node_lost_(index);
  EndGeneration({index}, why);
  on_node_lost_(index);
  SendWorld();
}

void Sequencer::EndGeneration(const std::vector<int>& lost, const std::string& why) {
  const absl::Status reason = WithReason(absl::AbortedError(why), kReasonPeerLost);
  ended_ = why;
  generation_ = std::max(generation_, seen_) + 1;
  for (Node& node : nodes_) node.drained = node.ready = false;
  if (std::exchange(open_, false)) on_ready_(false);
  for (auto it = listeners_.rbegin(); it != listeners_.rend(); ++it)
    (*it)->OnGenerationEnded(lost, reason);
}

void Sequencer::SendWorld() {
  v1::Command command;
  v1::World* world = command.mutable_world();
  world->set_generation(generation_);
  world->set_key(RandomBytes(kKeyBytes));
  world->set_ended(ended_);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].link == nullptr) continue;
    v1::WorldNode* node = world->add_nodes();
    node->set_node(static_cast<int>(i));
    node->set_incarnation(nodes_[i].hello.incarnation());
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

void Sequencer::OnWorldDrained(int index, const v1::WorldDrained& drained) {
  nodes_[index].drained = true;
  nodes_[index].port = drained.port();
  v1::Command command;
  for (int i = 0; i < node_count(); ++i) {
    if (nodes_[i].link == nullptr) continue;
    if (!nodes_[i].drained) return;
    v1::TransportPort* const port = command.mutable_connect_peers()->add_peers();
    *port = nodes_[i].port;
    port->set_node(i);
  }
  for (int i = 0; i < node_count(); ++i) Send(i, command);
}

void Sequencer::OnWorldReady(int node) {
  nodes_[node].ready = true;
  nodes_[node].broken.clear();
  if (open_ || !Ready({}).ok()) return;
  open_ = true;
  const bool complete = Complete().ok();
  if (complete) {
    spdlog::info("world complete: generation {}, {}, {}", generation_,
                 Counted(nodes_.size(), "node"), Counted(ranks_.size(), "rank"));
  } else {
    spdlog::info("generation {} continues with {}", generation_, UsableRanks());
  }
  for (WorldListener* listener : listeners_) listener->OnReady();
  if (complete) on_ready_(true);
}

std::string Sequencer::UsableRanks() const {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    if (nodes_[ranks_[rank].node].link != nullptr) ranks.push_back(static_cast<int>(rank));
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FormatRanks(ranks));
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
      rank.kind = hello.kind();
      rank.island = hello.island();
      rank.processor = nodes_[i].hello.processor();
    }
  }
}

void Sequencer::FillStatus(v1::GetStatusResponse* status) const {
  status->set_generation(generation_);
  const absl::Status complete = Complete();
  status->set_ready(complete.ok());
  status->set_reason(std::string(complete.message()));
  if (open_ && !complete.ok())
    absl::StrAppend(status->mutable_reason(), "; ", UsableRanks(), " can be used meanwhile");
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
    if (node.drained) out->set_transport_endpoint(node.port.endpoint());
    if (node.link != nullptr) {
      out->set_incarnation(ToHex(node.hello.incarnation()));
      out->set_version(node.hello.version());
      *out->mutable_ip_addresses() = node.hello.ip_addresses();
    }
    for (int device = 0; device < config_.nodes[i].devices; ++device) {
      v1::DeviceStatus* to = out->add_devices();
      to->set_rank(rank++);
      if (node.link == nullptr) continue;
      const v1::DeviceHello& from = node.hello.devices(device);
      to->set_kind(from.kind());
      to->set_description(from.description());
      to->set_thread_count(from.thread_count());
      to->set_heap_bytes(from.heap_bytes());
      to->set_island(from.island());
    }
    SetUsage(node.usage, out);
  }
}

}  // namespace agmm
