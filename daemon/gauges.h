// Gauges of those parts of a daemon that do not know the registry.
#pragma once

#include "daemon/link/udp_heartbeats.h"
#include "daemon/observe/metrics.h"
#include "daemon/transport/ucx_transport.h"

namespace agmm {

// `transport` must outlive the last Snapshot of `metrics`.
inline void AddTransportGauges(const UcxTransport* transport, Metrics* metrics) {
  const TransportCounters& c = transport->counters();
  const auto add = [metrics](const char* name, const TransportCount& count) {
    metrics->SetGauge(name, [&count] { return static_cast<double>(count); });
  };
  add("transport_messages_sent_total", c.plan.messages_sent);
  add("transport_messages_received_total", c.plan.messages_received);
  add("transport_stale_total", c.stale_generation);
  add("transport_parked_messages", c.parked);
  add("transport_staging_bytes", c.staging_bytes);
  metrics->SetGauge("transport_refused_connections_total",
                    [transport] { return static_cast<double>(transport->refused_connections()); });
  metrics->SetGauge("transport_sent_bytes_total", [&c] { return c.bytes_sent(); });
  metrics->SetGauge("transport_received_bytes_total", [&c] { return c.bytes_received(); });
  metrics->SetGauge("transport_dropped_total", [&c] { return c.dropped(); });
}

// `heartbeats` must outlive the last Snapshot of `metrics`.
inline void AddUdpHeartbeatGauge(const UdpHeartbeats* heartbeats, Metrics* metrics) {
  metrics->SetGauge("beats_heard_total",
                    [heartbeats] { return static_cast<double>(heartbeats->heard_total()); });
}

}  // namespace agmm
