#include "tests/conformance/ucx_network.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device/message_slot.h"
#include "tests/support/transport_port.h"

namespace agmm::test {
namespace {

constexpr uint64_t kGeneration = 1;

[[noreturn]] void Die(const absl::Status& status) {
  std::fprintf(stderr, "UcxNetwork: %s\n", status.ToString().c_str());
  std::abort();
}

}  // namespace

// One node's receiving end, and the transport that calls it.
class UcxNetwork::Node final : public Receiver, public BulkStore {
 public:
  Node(UcxNetwork* network, int node) : network_(network), node_(node) {
    absl::StatusOr<std::unique_ptr<UcxTransport>> transport = UcxTransport::Create({}, this, this);
    if (!transport.ok()) Die(transport.status());
    transport_ = *std::move(transport);
  }

  UcxTransport& transport() { return *transport_; }

  Verdict Accept(int from_node, const Message& message, int64_t bytes, Arrival* arrival) override {
    absl::StatusOr<Arrival> resolved = Resolve(from_node, message, bytes);
    if (!resolved.ok()) {
      std::lock_guard lock(network_->mutex_);
      if (network_->misfit_.ok()) network_->misfit_ = resolved.status();
      return Verdict::kDrop;
    }
    *arrival = *std::move(resolved);
    return Verdict::kReceive;
  }

  void Lost(int, const Message&, const absl::Status&) override {}  // never parks
  void Arrived(int, const Message& message, const Arrival& arrival,
               const absl::Status& status) override {
    std::lock_guard lock(network_->mutex_);
    const auto it = network_->endpoints_.find({message.plan, node_});
    if (it == network_->endpoints_.end()) return;  // the plan has ended
    if (status.ok()) {
      Signal(arrival, message.epoch, it->second.executors);
    } else {
      it->second.executors[arrival.slot.rank]->Cancel(status);
    }
  }

  absl::StatusOr<Rows> Resolve(int, const BulkBlock&, bool) override {
    return absl::NotFoundError("no tensors in this test");
  }

 private:
  absl::StatusOr<Arrival> Resolve(int from_node, const Message& message, int64_t bytes) const {
    std::lock_guard lock(network_->mutex_);
    const auto it = network_->endpoints_.find({message.plan, node_});
    if (it == network_->endpoints_.end()) return absl::NotFoundError("no such plan on the node");
    const Endpoint& endpoint = it->second;
    const ArrivalContext context{*endpoint.problem, *endpoint.schedule, endpoint.nodes, node_,
                                 endpoint.heaps,    &endpoint.operands};
    return ResolveArrival(context, from_node, message, bytes);
  }

  UcxNetwork* const network_;
  const int node_;
  std::unique_ptr<UcxTransport> transport_;
};

UcxNetwork::UcxNetwork(int nodes) {
  for (int node = 0; node < nodes; ++node) nodes_.push_back(std::make_unique<Node>(this, node));
  std::vector<TransportPort> ports;
  for (const auto& node : nodes_) ports.push_back(Renewed(node->transport()));
  for (int self = 0; self < nodes; ++self)
    nodes_[self]->transport().SetWorld(kGeneration, self, {1, 2, 3});
  for (int self = 0; self < nodes; ++self) {
    for (int peer = 0; peer < nodes; ++peer) {
      if (peer == self) continue;
      const absl::Status status = nodes_[self]->transport().Connect(peer, ports[peer].address);
      if (!status.ok()) Die(status);
    }
  }
}

UcxNetwork::~UcxNetwork() = default;

Transport* UcxNetwork::from(int node) { return &nodes_[node]->transport(); }
ProgressEngine* UcxNetwork::progress(int node) { return nodes_[node]->transport().progress(); }

void UcxNetwork::Register(uint64_t plan, int node, Endpoint endpoint) {
  std::lock_guard lock(mutex_);
  endpoints_[{plan, node}] = std::move(endpoint);
}

void UcxNetwork::Unregister(uint64_t plan) {
  std::lock_guard lock(mutex_);
  std::erase_if(endpoints_, [&](const auto& entry) { return entry.first.first == plan; });
}

absl::Status UcxNetwork::first_misfit() const {
  std::lock_guard lock(mutex_);
  return misfit_;
}

int64_t UcxNetwork::bytes_sent() const {
  int64_t bytes = 0;
  for (const auto& node : nodes_) bytes += node->transport().counters().plan.bytes_sent;
  return bytes;
}

}  // namespace agmm::test
