#include "daemon/node/member.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/link/dial.h"
#include "daemon/observe/process.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/base/reason.h"
#include "kernels/base/socket_address.h"
#include "kernels/base/units.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {

// The scan of the process's descriptors takes a millisecond, and questions about many jobs may
// arrive at once.
constexpr absl::Duration kPathsFresh = absl::Milliseconds(100);
constexpr size_t kKeyBytes = 16;  // of a generation

absl::Status Lost(const std::string& what) {
  return WithReason(absl::AbortedError(what), kReasonPeerLost);
}

}  // namespace

absl::Status CheckWorld(const Config& config, const v1::World& world) {
  if (world.key().size() != kKeyBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its key has %d bytes; a key has %d", world.key().size(), kKeyBytes));
  }
  int next = 0;
  for (const v1::WorldNode& node : world.nodes()) {
    if (node.node() < next || node.node() >= static_cast<int>(config.nodes.size())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("it lists node %d after node %d; nodes must ascend from 0 to %d",
                          node.node(), next - 1, static_cast<int>(config.nodes.size()) - 1));
    }
    next = node.node() + 1;
  }
  return absl::OkStatus();
}

Member::Member(const Config& config, Parts parts)
    : config_(config),
      parts_(std::move(parts)),
      incarnation_(RandomBytes(16)),
      stale_commands_(parts_.metrics->counter("world_stale_commands_total")),
      paths_(parts_.loop, parts_.transport,
             {.made = [this] { BeReady(); },
              .broken = [this](int node, const std::string& why) { OnPeerBroken(node, why); }}) {}

void Member::OnStream(std::shared_ptr<SequencerLink> link) {
  if (stopped_) return;
  link_ = std::move(link);
  accepted_ = false;
  retry_ = kRetryJoin;
  v1::MemberMessage message;
  message.set_generation(last_generation_);
  v1::Hello* hello = message.mutable_hello();
  hello->set_cluster(config_.cluster);
  hello->set_config_hash(config_.hash);
  hello->set_node(config_.self);
  hello->set_node_name(config_.node().name);
  hello->set_incarnation(incarnation_);
  hello->set_protocol_version(kProtocolVersion);
  hello->set_plan_format_version(kPlanFormatVersion);
  hello->set_message_version(kMessageVersion);
  hello->set_version(config_.version);
  for (const std::string& ip : config_.node().ips) hello->add_ip_addresses(ip);
  hello->set_processor(ProcessorName());
  for (const v1::DeviceHello& device : parts_.devices) *hello->add_devices() = device;
  for (const NodeConfig& node : config_.nodes) {
    v1::ConfiguredNode* configured = hello->add_nodes();
    configured->set_name(node.name);
    configured->set_address(node.address);
    configured->set_devices(node.devices);
  }
  hello->set_last_generation(last_generation_);
  link_->Send(std::move(message));
}

void Member::OnMessage(const v1::SequencerMessage& message) {
  if (stopped_) return;
  if (message.has_refusal()) return OnRefusal(message.refusal());
  if (!std::exchange(accepted_, true)) {
    refusal_.clear();
    handlers_.joined(link_);
  }
  for (const v1::Command& command : message.commands()) {
    if (command.has_world()) {
      if (const absl::Status sound = CheckWorld(config_, command.world()); !sound.ok()) {
        spdlog::error("cannot enter generation {}: {}", command.world().generation(),
                      std::string(sound.message()));
        stale_commands_->Add();
        continue;
      }
      OnWorld(command.world());
    } else if (message.generation() != (next_.has_value() ? next_->generation() : generation_)) {
      stale_commands_->Add();
    } else if (next_.has_value()) {
      waiting_.push_back(command);
    } else {
      Obey(command);
    }
  }
}

void Member::OnRefusal(const v1::Refusal& refusal) {
  accepted_ = false;  // a heartbeat may have arrived first
  const std::string& self = config_.node().name;
  // The other daemon may be this one's predecessor, which has died and has not been given up yet.
  if (refusal.field() == "incarnation") {
    return RetryAfter(
        kRetryDuplicate,
        absl::StrFormat("another daemon is node %s of this world; stop one of the two", self));
  }
  const std::string why = absl::StrFormat(
      "refused by the sequencer, %s: %s is %s on node %s and %s on node %s; make them equal",
      config_.Describe(0), refusal.field(), refusal.yours(), self, refusal.mine(),
      config_.nodes[0].name);
  // This daemon was in the world before, so one of the two has restarted with another configuration
  // and may restart with the right one. All other refusals are final.
  if (last_generation_ > 0 && absl::StartsWith(refusal.field(), "world"))
    return RetryAfter(kRetryRefused, why);
  retry_ = absl::InfiniteDuration();
  handlers_.refused(absl::FailedPreconditionError(why));
}

void Member::OnDenied(const std::string& why) {
  if (stopped_) return;
  RetryAfter(kRetryRefused, absl::StrFormat("%s: %s", config_.Describe(0), why));
}

void Member::RetryAfter(absl::Duration retry, const std::string& why) {
  retry_ = retry;
  if (std::exchange(refusal_, why) != why)
    spdlog::error("{}; retrying every {}", why, absl::FormatDuration(retry));
  handlers_.lost(Lost(why), "");
}

void Member::OnWorld(const v1::World& world) {
  last_generation_ = std::max(last_generation_, world.generation());
  handlers_.complete(false);
  next_ = world;
  waiting_.clear();
  Drain(Lost(world.ended().empty() ? absl::StrFormat("generation %d ended", generation_)
                                   : world.ended()));
}

void Member::Drain(const absl::Status& reason) {
  if (std::exchange(draining_, true)) return;
  drained_ = false;
  paths_.Forget();
  parts_.store->EndTransfers(reason);
  parts_.runner->EndGeneration(reason, [this] {
    parts_.filler->EndGeneration([this] {
      parts_.loop->Post([this] {
        drained_ = true;
        OnDrained();
      });
    });
  });
  // Renews at once, because the drain waits for bytes in flight, and lost nodes neither send nor
  // receive them.
  Renew();
}

void Member::Renew() {
  if (parts_.transport == nullptr) return;
  renewed_ = false;
  parts_.transport->Renew([this](absl::StatusOr<TransportPort> port) {
    parts_.loop->Post([this, port = std::move(port)] {
      if (port.ok() || stopped_) {
        renewed_ = true;
        if (!port.ok()) return OnDrained();
        if (std::exchange(port_.endpoint, port->endpoint) != port->endpoint)
          spdlog::info("the transport listens on {}", port->endpoint);
        port_ = *port;
        return OnDrained();
      }
      spdlog::error("cannot reach the other nodes: {}", std::string(port.status().message()));
      parts_.loop->PostAfter(kRenewAgain, [this] { Renew(); });
    });
  });
}

void Member::OnDrained() {
  // From WorldDrained on, memory that an older generation still writes to may have a new owner.
  draining_ = !(drained_ && renewed_);
  if (draining_) return;
  SendReports();
  if (stopped_) return stopped_();
  if (std::exchange(forget_tensors_, false)) parts_.store->DropAll();
  if (!next_.has_value()) return;
  world_ = *std::exchange(next_, std::nullopt);
  generation_ = world_.generation();
  v1::Report report;
  v1::TransportPort* const port = report.mutable_world_drained()->mutable_port();
  if (parts_.transport != nullptr) {
    std::array<uint8_t, kKeyBytes> key{};  // CheckWorld has checked its size
    std::copy_n(world_.key().begin(), kKeyBytes, key.begin());
    parts_.transport->SetWorld(generation_, config_.self, key);
    port->set_address(port_.address);
    port->set_endpoint(port_.endpoint);
  }
  Report(std::move(report));
  for (const v1::Command& command : std::exchange(waiting_, {})) Obey(command);
}

void Member::BeReady() {
  handlers_.report_held();
  v1::Report ready;
  ready.mutable_world_ready();
  Report(std::move(ready));
  if (world_.nodes_size() == static_cast<int>(config_.nodes.size())) {
    if (!config_.is_sequencer()) {
      spdlog::info("world complete: generation {}, {}, {}", generation_,
                   Counted(config_.nodes.size(), "node"),
                   Counted(config_.node_of_rank().size(), "rank"));
    }
    handlers_.complete(true);
  }
}

void Member::Obey(const v1::Command& command) {
  switch (command.command_case()) {
    case v1::Command::kPreparePlan: return parts_.runner->Prepare(command.prepare_plan());
    case v1::Command::kLaunchJob: return parts_.runner->Launch(command.launch_job());
    case v1::Command::kCancelLaunch: return parts_.runner->Cancel(command.cancel_launch());
    case v1::Command::kReleasePlan: return parts_.runner->Release(command.release_plan());
    case v1::Command::kPlaceTensor: {
      v1::Report report;
      v1::TensorPlaced* placed = report.mutable_tensor_placed();
      placed->set_tensor_id(command.place_tensor().tensor().tensor_id());
      *placed->mutable_error() = ToProto(parts_.store->Place(command.place_tensor().tensor()));
      return Report(std::move(report));
    }
    case v1::Command::kDropTensor: return parts_.store->Drop(command.drop_tensor().tensor_id());
    case v1::Command::kConnectPeers:
      if (parts_.transport == nullptr) return BeReady();
      return paths_.Make(command.connect_peers(), config_.self);
    case v1::Command::kReportProgress:
      return parts_.runner->ReportProgress(command.report_progress(), PathsNow());
    case v1::Command::kFillShards: return parts_.filler->Fill(command.fill_shards());
    case v1::Command::kEndMappings:
      return handlers_.end_mappings(command.end_mappings().tensor_id());
    case v1::Command::kWorld:
    case v1::Command::COMMAND_NOT_SET: stale_commands_->Add();
  }
}

const std::vector<v1::NodePath>& Member::PathsNow() {
  const int64_t now_ns = MonotonicNanos();
  if (parts_.transport == nullptr || now_ns < node_paths_until_ns_) return node_paths_;
  node_paths_until_ns_ = now_ns + absl::ToInt64Nanoseconds(kPathsFresh);
  node_paths_.clear();
  const double now_us = now_ns * 1e-3;
  for (const auto& [node, use] : parts_.transport->tcp_uses()) {
    v1::NodePath& path = node_paths_.emplace_back();
    path.set_from_node(config_.self);
    path.set_to_node(node);
    path.set_acked_bytes(use.acked_bytes);
    path.set_waiting_bytes(use.waiting_bytes);
    path.set_silent_us(use.silent_ms * 1e3);
    path.set_at_us(now_us);
  }
  return node_paths_;
}

void Member::Report(v1::Report report) {
  // OnDrained, which changes the generation, runs on the loop after all earlier reports, so each
  // report carries the generation that it belongs to.
  parts_.loop->Post([this, report = std::move(report)]() mutable {
    if (link_ == nullptr || generation_ == 0) return;
    if (reports_.reports_size() == 0) parts_.loop->PostLast([this] { SendReports(); });
    reports_.add_reports()->Swap(&report);
  });
}

void Member::SendReports() {
  if (reports_.reports_size() == 0) return;
  reports_.set_generation(generation_);
  v1::MemberMessage message;
  message.Swap(&reports_);
  if (link_ != nullptr) link_->Send(std::move(message));
}

void Member::OnPeerBroken(int node, const std::string& reason) {
  const uint64_t generation = generation_;
  // An answer counts only within the grace period.
  const std::optional<SocketAddress> address = paths_.address(node);
  const auto dial = address.has_value() ? std::make_shared<Dial>(std::vector{*address}) : nullptr;
  parts_.loop->PostAfter(kTransportGrace, [this, node, reason, generation, dial] {
    if (stopped_ || generation_ != generation || next_.has_value()) return;
    v1::Report report;
    report.mutable_peer_broken()->set_node(node);
    report.mutable_peer_broken()->set_reason(
        dial == nullptr ? reason : absl::StrCat(reason, "; ", dial->Answers(absl::ZeroDuration())));
    Report(std::move(report));
  });
}

void Member::OnStreamEnded(const std::string& how, bool given_up) {
  link_ = nullptr;
  reports_.Clear();
  if (stopped_ || retry_ == absl::InfiniteDuration()) return;
  if (!std::exchange(accepted_, false)) return;
  const std::string pause = parts_.pauses == nullptr ? "" : parts_.pauses->Recent(PauseNanos());
  const absl::Status reason = Lost(
      !pause.empty()
          ? absl::StrFormat("%s, and lost the connection to the sequencer, %s, meanwhile: %s",
                            pause, config_.Describe(0), how)
      : given_up ? absl::StrFormat("%s was lost: the sequencer, %s, gave it up: %s",
                                   config_.Describe(config_.self), config_.Describe(0), how)
                 : absl::StrFormat("the sequencer, %s, was lost: %s", config_.Describe(0), how));
  spdlog::warn("{}", std::string(reason.message()));
  generation_ = 0;
  next_.reset();
  waiting_.clear();
  forget_tensors_ = true;
  handlers_.complete(false);
  handlers_.lost(reason, pause.empty() ? "waiting for it to come back" : "joining the world again");
  world_.Clear();
  Drain(reason);
}

void Member::Stop(const absl::Status& reason, std::function<void()> drained) {
  stopped_ = std::move(drained);
  link_ = nullptr;
  Drain(reason);
}

}  // namespace agmm
