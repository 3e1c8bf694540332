#include "tests/conformance/ucx_network.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/base/status.h"
#include "kernels/device/arrival.h"

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

  Verdict Accept(int from_node, const Message& message, int64_t bytes, Rows* to) override {
    const absl::StatusOr<Arrival> arrival = Resolve(from_node, message, bytes, nullptr);
    if (!arrival.ok()) {
      std::lock_guard lock(network_->mutex_);
      if (network_->misfit_.ok()) network_->misfit_ = arrival.status();
      return Verdict::kDrop;
    }
    *to = arrival->to;
    return Verdict::kReceive;
  }

  void Lost(int, const Message&, const absl::Status&) override {}  // nothing is parked
  void Arrived(int from_node, const Message& message, const absl::Status& status) override {
    Executor* executor = nullptr;
    Endpoint endpoint;
    absl::StatusOr<Arrival> arrival = Resolve(from_node, message, -1, &endpoint);
    if (!arrival.ok()) return;  // its plan is over; nobody waits for it
    executor = endpoint.executors[arrival->slot.rank];
    if (status.ok()) {
      executor->Signal(arrival->slot.index, message.epoch);
    } else {
      executor->Cancel(status);
    }
  }

  absl::StatusOr<Rows> Resolve(int, const BulkBlock&, bool) override {
    return absl::NotFoundError("no tensors in this test");
  }

 private:
  // `bytes` -1: as many as the schedule says.
  absl::StatusOr<Arrival> Resolve(int from_node, const Message& message, int64_t bytes,
                                  Endpoint* found) const {
    Endpoint endpoint;
    {
      std::lock_guard lock(network_->mutex_);
      const auto it = network_->endpoints_.find({message.plan, node_});
      if (it == network_->endpoints_.end()) return absl::NotFoundError("no such plan on the node");
      endpoint = it->second;
    }
    if (bytes < 0) {
      const Step& step = endpoint.schedule->ranks[message.source][message.step];
      const auto* transfer = std::get_if<Transfer>(&step.op);
      bytes = 0;
      if (transfer != nullptr && message.part < static_cast<int>(transfer->to.size()))
        bytes = transfer->block.rows.size() * RowBytes(transfer->block, transfer->from);
    }
    const ArrivalContext context{*endpoint.problem, *endpoint.schedule, endpoint.nodes, node_,
                                 endpoint.heaps,    &endpoint.operands};
    absl::StatusOr<Arrival> arrival = ResolveArrival(context, from_node, message, bytes);
    if (found != nullptr) *found = std::move(endpoint);
    return arrival;
  }

  UcxNetwork* const network_;
  const int node_;
  std::unique_ptr<UcxTransport> transport_;
};

UcxNetwork::UcxNetwork(int nodes) {
  for (int node = 0; node < nodes; ++node) nodes_.push_back(std::make_unique<Node>(this, node));
  for (int self = 0; self < nodes; ++self) {
    for (int peer = 0; peer < nodes; ++peer) {
      if (peer == self) continue;
      const absl::Status status =
          nodes_[self]->transport().Connect(peer, nodes_[peer]->transport().address(), 1);
      if (!status.ok()) Die(status);
    }
    nodes_[self]->transport().SetWorld(kGeneration, self, {1, 2, 3});
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
