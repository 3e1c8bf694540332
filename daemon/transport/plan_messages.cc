#include "daemon/transport/plan_messages.h"

#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/units.h"

namespace agmm::transport {

PlanMessages::PlanMessages(UcxWorker* worker, const CurrentWorld& worlds, Endpoints* endpoints,
                           Receives* receives, Receiver* receiver, Stats* stats)
    : worker_(worker),
      worlds_(worlds),
      endpoints_(endpoints),
      receives_(receives),
      receiver_(receiver),
      stats_(stats) {}

void PlanMessages::Send(int node, const Message& message, int64_t bytes, Outgoing data, Done done) {
  const std::shared_ptr<const World> world = worlds_.Get();
  wire::PlanHeader header;
  header.envelope = {wire::kVersion, wire::kPlan, world->self_node, world->generation};
  header.plan = message.plan;
  header.epoch = message.epoch;
  header.source_rank = message.source;
  header.step = message.step;
  header.part = message.part;
  header.bytes = bytes;
  auto outbound = std::make_unique<Outbound>();
  outbound->kind = wire::kPlan;
  outbound->data = std::move(data);
  outbound->push = message.push;
  outbound->done = std::move(done);
  worker_->Post([this, node, world, header, outbound = std::move(outbound)]() mutable {
    if (AGMM_FAILPOINT("transport.drop")) {
      outbound->done(absl::OkStatus());
      return;
    }
    if (!world->key->Seal(&header)) {
      outbound->done(absl::InternalError("OpenSSL failed to sum a header"));
      return;
    }
    outbound->SetHeader(header);
    stats_->plan.Sent(header.bytes);
    if (AGMM_FAILPOINT("transport.delay")) {
      thread_local std::minstd_rand random(std::random_device{}());
      worker_->After(absl::Microseconds(random() % 1000),
                     [this, node, outbound = std::move(outbound)]() mutable {
                       endpoints_->Send(node, std::move(outbound));
                     });
      return;
    }
    endpoints_->Send(node, std::move(outbound));
  });
}

Receiver::Verdict PlanMessages::Offer(int node, uint64_t generation, const Message& message,
                                      int64_t bytes, const Payload& payload, bool* used) {
  Rows to;
  const Receiver::Verdict verdict = receiver_->Accept(node, message, bytes, &to);
  *used = false;
  if (verdict == Receiver::Verdict::kDrop) stats_->unknown.Add();
  if (verdict != Receiver::Verdict::kReceive) return verdict;
  Done arrived([this, node, message, bytes](absl::Status status) {
    if (status.ok()) stats_->plan.Received(bytes);
    receiver_->Arrived(node, message, status);
  });
  if (to.rows == 0 || to.row_bytes == 0) to = Rows{};
  if (to.bytes() != bytes) {
    stats_->wrong_length.Add();
    arrived(absl::InvalidArgumentError(
        absl::StrFormat("node %d sent %d bytes for step %d part %d of rank %d, where %d belong; "
                        "both must have the same "
                        "schedule",
                        node, bytes, message.step, message.part, message.source, to.bytes())));
    return verdict;
  }
  *used = receives_->Take(node, generation, payload, to, std::move(arrived));
  return verdict;
}

ucs_status_t PlanMessages::OnMessage(const void* bytes, size_t length, const Payload& payload) {
  wire::PlanHeader header;
  if (!Admit(worlds_, wire::kPlan, bytes, length, &header, stats_)) return UCS_OK;
  if (header.source_rank < 0 || header.step < 0 || header.part < 0 || header.reserved != 0) {
    stats_->malformed.Add();
    return UCS_OK;
  }
  const Message message{header.plan, header.epoch, header.source_rank, header.step, header.part};
  const int node = header.envelope.source_node;
  bool used = false;
  if (Offer(node, header.envelope.generation, message, header.bytes, payload, &used) !=
      Receiver::Verdict::kPark) {
    return used ? UCS_INPROGRESS : UCS_OK;
  }
  Peer& peer = peers_[node];
  const int64_t copied = payload.rendezvous ? 0 : static_cast<int64_t>(payload.length);
  if (peer.parked.size() >= kMaxParkedPerPeer || peer.bytes + copied > kMaxParkedBytesPerPeer) {
    stats_->too_many_parked.Add();
    receiver_->Lost(node, message,
                    absl::ResourceExhaustedError(absl::StrFormat(
                        "node %d is %d messages ahead of the launches here, with %s kept for it, "
                        "and %d or %s is "
                        "what can be kept; launch fewer plans at a time, or ask for fewer chunks",
                        node, peer.parked.size() + 1, FormatBytes(peer.bytes + copied),
                        kMaxParkedPerPeer, FormatBytes(kMaxParkedBytesPerPeer))));
    return UCS_OK;
  }
  peer.bytes += copied;
  Parked& kept = peer.parked.emplace_back();
  kept.generation = header.envelope.generation;
  kept.message = message;
  kept.bytes = header.bytes;
  kept.payload = payload;
  stats_->parked.Add();
  stats_->parked_total.Add();
  if (payload.rendezvous) return UCS_INPROGRESS;
  const auto* data = static_cast<const std::byte*>(payload.data);
  kept.copy.assign(data, data + payload.length);
  kept.payload.data = kept.copy.data();
  return UCS_OK;
}

void PlanMessages::Resume() {
  for (auto& [node, peer] : peers_) {
    for (auto it = peer.parked.begin(); it != peer.parked.end();) {
      bool used = false;
      if (Offer(node, it->generation, it->message, it->bytes, it->payload, &used) ==
          Receiver::Verdict::kPark) {
        ++it;
        continue;
      }
      if (!used) receives_->Release(it->payload);
      peer.bytes -= static_cast<int64_t>(it->copy.size());
      it = peer.parked.erase(it);
      stats_->parked.Add(-1);
    }
  }
}

void PlanMessages::DropIf(int node, const std::function<bool(const Parked&)>& drop) {
  auto found = peers_.find(node);
  if (found == peers_.end()) return;
  Peer& peer = found->second;
  peer.parked.remove_if([&](const Parked& parked) {
    if (!drop(parked)) return false;
    peer.bytes -= static_cast<int64_t>(parked.copy.size());
    stats_->stale_generation.Add();
    stats_->parked.Add(-1);
    receives_->Release(parked.payload);
    return true;
  });
}

void PlanMessages::DropStale() {
  const uint64_t current = worlds_.generation();
  for (auto& [node, peer] : peers_) {
    DropIf(node, [&](const Parked& parked) { return parked.generation != current; });
  }
}

void PlanMessages::DropNode(int node, uint64_t generation) {
  DropIf(node, [&](const Parked& parked) { return parked.generation <= generation; });
}

void PlanMessages::DropAll() {
  for (auto& [node, peer] : peers_) {
    DropIf(node, [](const Parked&) { return true; });
  }
}

}  // namespace agmm::transport
