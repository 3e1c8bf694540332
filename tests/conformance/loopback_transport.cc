#include "tests/conformance/loopback_transport.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "kernels/base/clock.h"

namespace agmm::test {

class LoopbackTransport::Port final : public Transport {
 public:
  Port(LoopbackTransport* network, int node) : network_(network), node_(node) {}
  void Send(int node, const Message& message, Rows from,
            std::function<void(absl::Status)> done) override {
    network_->Post({node_, node, message, from, std::move(done)});
  }

 private:
  LoopbackTransport* const network_;
  const int node_;
};

LoopbackTransport::LoopbackTransport(uint64_t seed, absl::Duration max_delay)
    : random_(seed),
      max_delay_us_(absl::ToInt64Microseconds(max_delay)),
      thread_([this] { Deliver(); }) {}

LoopbackTransport::~LoopbackTransport() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

Transport* LoopbackTransport::from(int node) {
  std::lock_guard lock(mutex_);
  auto& port = ports_[node];
  if (port == nullptr) port = std::make_unique<Port>(this, node);
  return port.get();
}

void LoopbackTransport::Register(uint64_t plan, int node, Endpoint endpoint) {
  std::lock_guard lock(mutex_);
  endpoints_[{plan, node}] = std::move(endpoint);
}

void LoopbackTransport::Unregister(uint64_t plan) {
  std::lock_guard lock(mutex_);
  std::erase_if(endpoints_, [&](const auto& entry) { return entry.first.first == plan; });
}

void LoopbackTransport::FailNode(int node, absl::Status status) {
  std::lock_guard lock(mutex_);
  failed_[node] = std::move(status);
}

void LoopbackTransport::Blackhole(int node) {
  std::lock_guard lock(mutex_);
  blackholes_.insert(node);
}

absl::Status LoopbackTransport::first_misfit() const {
  std::lock_guard lock(mutex_);
  return misfit_;
}

void LoopbackTransport::Post(Parcel parcel) {
  std::lock_guard lock(mutex_);
  const int64_t delay_us = max_delay_us_ > 0 ? random_() % max_delay_us_ : 0;
  due_.emplace(MonotonicNanos() + delay_us * 1000, std::move(parcel));
  wake_.notify_one();
}

void LoopbackTransport::Deliver() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (due_.empty()) {
      if (stopping_) return;
      wake_.wait(lock);
      continue;
    }
    const int64_t wait_ns = due_.begin()->first - MonotonicNanos();
    if (wait_ns > 0) {
      wake_.wait_for(lock, std::chrono::nanoseconds(wait_ns));
      continue;
    }
    const Parcel parcel = std::move(due_.extract(due_.begin()).mapped());
    absl::Status status;
    if (const auto failed = failed_.find(parcel.to); failed != failed_.end()) {
      status = failed->second;
    } else if (blackholes_.count(parcel.to) == 0) {
      // Called with the lock, because an endpoint must not be removed while its executor is called.
      status = Hand(parcel);
      if (!status.ok() && misfit_.ok()) misfit_ = status;
    }
    lock.unlock();
    parcel.done(status);
    lock.lock();
  }
}

absl::Status LoopbackTransport::Hand(const Parcel& parcel) {
  const auto it = endpoints_.find({parcel.message.plan, parcel.to});
  if (it == endpoints_.end()) return absl::NotFoundError("no such plan on the node");
  const Endpoint& endpoint = it->second;
  const ArrivalContext context{*endpoint.problem, *endpoint.schedule, endpoint.nodes,
                               parcel.to,         endpoint.heaps,     &endpoint.operands};
  const absl::StatusOr<Arrival> arrival =
      ResolveArrival(context, parcel.from, parcel.message, parcel.rows.bytes());
  if (!arrival.ok()) return arrival.status();
  // This transport overwrites every byte that a transport may.
  const Rows& to = arrival->to;
  for (int64_t row = 0; to.padded && row + 1 < to.rows; ++row) {
    const int64_t begin = row * to.pitch_bytes + to.row_bytes;
    const int64_t bytes = to.pitch_bytes - to.row_bytes;
    Rows gap{to.on_host() ? to.data + begin : nullptr,
             1,
             bytes,
             bytes,
             false,
             to.heap,
             to.offset_bytes + begin};
    std::vector<std::byte> junk(bytes, std::byte{0x5A});
    if (absl::Status status = WriteRows({junk.data(), 1, bytes, bytes}, gap); !status.ok())
      return status;
  }
  if (absl::Status status = WriteRows(parcel.rows, to); !status.ok()) return status;
  Signal(*arrival, parcel.message.epoch, endpoint.executors);
  return absl::OkStatus();
}

}  // namespace agmm::test
