// The counters behind TransportCounters. Any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "daemon/transport/ucx_transport.h"

namespace agmm::transport {

class Count {
 public:
  void Add(int64_t delta = 1) { value_.fetch_add(delta, std::memory_order_relaxed); }
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

struct Stats {
  struct Traffic {
    Count messages_sent, bytes_sent, messages_received, bytes_received;
    void Sent(int64_t bytes) {
      messages_sent.Add();
      bytes_sent.Add(bytes);
    }
    void Received(int64_t bytes) {
      messages_received.Add();
      bytes_received.Add(bytes);
    }
    TransportCounters::Traffic Snapshot() const {
      return {messages_sent.value(), bytes_sent.value(), messages_received.value(),
              bytes_received.value()};
    }
  };
  Traffic plan, bulk_write, bulk_read, bulk_reply;
  Count malformed, stale_generation, bad_check, unknown, wrong_length, too_many_parked;
  Count parked, parked_total, peers_failed, abandoned;
  std::atomic<int64_t> staging_bytes{0}, staging_bytes_peak{0};

  TransportCounters Snapshot() const;
};

}  // namespace agmm::transport
