#include "daemon/transport/plan_messages.h"

#include <random>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/units.h"

namespace agmm::transport {

void PlanMessages::Send(int node, const Message& message, int64_t bytes, Outgoing data, Done done) {
  wire::PlanHeader header;
  header.plan = message.plan;
  header.epoch = message.epoch;
  header.source_rank = message.source;
  header.step = message.step;
  header.part = message.part;
  header.bytes = bytes;
  auto outbound = std::make_unique<Outbound>(wire::kPlan, shared_.current.Get());
  outbound->data = std::move(data);
  outbound->push = message.push;
  outbound->done = std::move(done);
  shared_.worker->Post([this, node, header, outbound = std::move(outbound)]() mutable {
    if (AGMM_FAILPOINT("transport.drop")) {
      outbound->done(absl::OkStatus());
      return;
    }
    shared_.counters.plan.Sent(header.bytes);
    UcxWorker::Task send = [this, node, header, outbound = std::move(outbound)]() mutable {
      endpoints_->Send(node, header, std::move(outbound));
    };
    if (!AGMM_FAILPOINT("transport.delay")) return send();
    thread_local std::minstd_rand random(std::random_device{}());
    shared_.worker->After(absl::Microseconds(random() % 1000), std::move(send));
  });
}

Receiver::Verdict PlanMessages::Offer(const Received& received, bool* used) {
  const auto& [node, generation, message, bytes, payload, copy] = received;
  Arrival arrival;
  const Receiver::Verdict verdict = receiver_->Accept(node, message, bytes, &arrival);
  *used = false;
  if (verdict == Receiver::Verdict::kDrop) shared_.counters.unknown.Add();
  if (verdict != Receiver::Verdict::kReceive) return verdict;
  const Rows to = arrival.to.bytes() == 0 ? Rows{} : arrival.to;
  Done arrived([this, node = node, message = message, bytes = bytes,
                arrival = std::move(arrival)](absl::Status status) {
    if (status.ok()) shared_.counters.plan.Received(bytes);
    receiver_->Arrived(node, message, arrival, status);
  });
  if (to.bytes() != bytes) {
    shared_.counters.wrong_length.Add();
    arrived(absl::InvalidArgumentError(
        absl::StrFormat("node %d sent %d bytes for step %d part %d of rank %d, where %d belong; "
                        "both nodes must have the same schedule",
                        node, bytes, message.step, message.part, message.source, to.bytes())));
    return verdict;
  }
  *used = receives_->Take(node, payload, to, std::move(arrived));
  return verdict;
}

ucs_status_t PlanMessages::OnMessage(const void* bytes, size_t length, const Payload& payload) {
  wire::PlanHeader header;
  if (!Admit(shared_.current, wire::kPlan, bytes, length, &header, &shared_.counters))
    return UCS_OK;
  if (header.source_rank < 0 || header.step < 0 || header.part < 0 || header.reserved != 0) {
    shared_.counters.malformed.Add();
    return UCS_OK;
  }
  const int node = header.envelope.source_node;
  Received received{node,
                    header.envelope.generation,
                    {header.plan, header.epoch, header.source_rank, header.step, header.part},
                    header.bytes,
                    payload};
  bool used = false;
  if (Offer(received, &used) != Receiver::Verdict::kPark) return used ? UCS_INPROGRESS : UCS_OK;
  Peer& peer = peers_[node];
  const int64_t copied = payload.rendezvous ? 0 : payload.length;
  if (peer.parked.size() >= kMaxParkedPerPeer || peer.bytes + copied > kMaxParkedBytesPerPeer) {
    shared_.counters.too_many_parked.Add();
    receiver_->Lost(node, received.message,
                    absl::ResourceExhaustedError(absl::StrFormat(
                        "node %d is %d messages ahead of the launches here, which take %s; at most "
                        "%d messages and %s are kept for a node; launch fewer plans at a time, or "
                        "ask for fewer chunks",
                        node, peer.parked.size() + 1, FormatBytes(peer.bytes + copied),
                        kMaxParkedPerPeer, FormatBytes(kMaxParkedBytesPerPeer))));
    return UCS_OK;
  }
  peer.bytes += copied;
  const auto* data = static_cast<const std::byte*>(payload.data);
  received.copy.assign(data, data + copied);
  if (!payload.rendezvous) received.payload.data = received.copy.data();
  peer.parked.push_back(std::move(received));
  shared_.counters.parked.Add();
  return payload.rendezvous ? UCS_INPROGRESS : UCS_OK;
}

void PlanMessages::Resume() {
  for (auto& [node, peer] : peers_) {
    for (auto it = peer.parked.begin(); it != peer.parked.end();) {
      bool used = false;
      if (Offer(*it, &used) == Receiver::Verdict::kPark) {
        ++it;
        continue;
      }
      if (!used) receives_->Release(it->payload);
      peer.bytes -= static_cast<int64_t>(it->copy.size());
      it = peer.parked.erase(it);
      shared_.counters.parked.Add(-1);
    }
  }
}

void PlanMessages::Drop(const Scope& scope) {
  for (auto& [node, peer] : peers_) {
    peer.parked.remove_if([&, node = node, &peer = peer](const Received& parked) {
      if (!scope.Contains(node, parked.generation)) return false;
      peer.bytes -= static_cast<int64_t>(parked.copy.size());
      shared_.counters.stale_generation.Add();
      shared_.counters.parked.Add(-1);
      receives_->Release(parked.payload);
      return true;
    });
  }
}

}  // namespace agmm::transport
