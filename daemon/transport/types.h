// Types that the transport's parts and its users share.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/rows.h"

namespace agmm {

// TCP ports, both ends included. The default: any port.
struct PortRange {
  int first = 0, last = 0;
};

struct TransportOptions {
  // The IP address of this host at which the transport listens, and from which it connects. Empty:
  // loopback.
  std::string bind_address;
  // The ports at which the other nodes connect.
  PortRange ports;
  // Ports to avoid, because this process will listen on them for other purposes.
  std::set<int> other_ports;
  // The world's secret; connections that do not prove that they know it are closed.
  std::string secret;
  // Names a node in errors: "node b (10.0.0.2:7101)".
  std::function<std::string(int node)> describe = [](int node) {
    return "node " + std::to_string(node);
  };
  // UCX settings that replace those of ucx_config.cc, for measurements, named like UCX's
  // environment variables without UCX_.
  std::vector<std::pair<std::string, std::string>> other_settings;
};

// A part of one rank's shard of a tensor. Its node knows the address.
struct BulkBlock {
  uint64_t tensor = 0;
  int rank = 0;                        // rank of the world
  int64_t row_begin = 0, row_end = 0;  // in the shard's own coordinates, in elements
  int64_t col_begin = 0, col_end = 0;
};

// Maps blocks to this node's memory.
class BulkStore {
 public:
  virtual ~BulkStore() = default;
  // Returns the memory of `block` for node `from_node` to write or read; it must stay valid until
  // no request of this generation is in flight. Called on the progress thread; must not block.
  // Errors are sent back to `from_node`: NOT_FOUND, OUT_OF_RANGE.
  virtual absl::StatusOr<Rows> Resolve(int from_node, const BulkBlock& block, bool write) = 0;
};

// Counts from any thread, and reads as the count.
class TransportCount {
 public:
  // Returns the new count.
  int64_t Add(int64_t delta = 1) {
    return value_.fetch_add(delta, std::memory_order_relaxed) + delta;
  }
  void RaiseTo(int64_t value) {
    int64_t now = *this;
    while (now < value && !value_.compare_exchange_weak(now, value)) {
    }
  }
  operator int64_t() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

// Counters of a transport since its creation. Bytes are payload.
struct TransportCounters {
  struct Traffic {
    TransportCount messages_sent, bytes_sent, messages_received, bytes_received;
    void Sent(int64_t bytes) { messages_sent.Add(), bytes_sent.Add(bytes); }
    void Received(int64_t bytes) { messages_received.Add(), bytes_received.Add(bytes); }
  };
  Traffic plan, bulk;
  // Dropped on arrival, by reason.
  TransportCount malformed;         // not a header of this version
  TransportCount stale_generation;  // of another generation of the world
  TransportCount bad_check;         // the keyed check of the header does not hold
  TransportCount unknown;           // for an unknown or forgotten plan, epoch or request
  TransportCount wrong_length;      // not the number of bytes in the receiver's own schedule
  TransportCount too_many_parked;   // above the bounds of plan_messages.h
  TransportCount parked;            // now
  TransportCount staging_bytes;  // now in copies of rows that cannot be sent or received in place
  TransportCount staging_bytes_peak;
  TransportCount peers_failed;

  int64_t bytes_sent() const { return plan.bytes_sent + bulk.bytes_sent; }
  int64_t bytes_received() const { return plan.bytes_received + bulk.bytes_received; }
  int64_t dropped() const {
    return malformed + stale_generation + bad_check + unknown + wrong_length + too_many_parked;
  }
};

}  // namespace agmm
