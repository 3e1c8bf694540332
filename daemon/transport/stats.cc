#include "daemon/transport/stats.h"

namespace agmm::transport {

TransportCounters Stats::Snapshot() const {
  TransportCounters now;
  now.plan = plan.Snapshot();
  now.bulk_write = bulk_write.Snapshot();
  now.bulk_read = bulk_read.Snapshot();
  now.bulk_reply = bulk_reply.Snapshot();
  now.malformed = malformed.value();
  now.stale_generation = stale_generation.value();
  now.bad_check = bad_check.value();
  now.unknown = unknown.value();
  now.wrong_length = wrong_length.value();
  now.too_many_parked = too_many_parked.value();
  now.parked = parked.value();
  now.parked_total = parked_total.value();
  now.staging_bytes = staging_bytes.load(std::memory_order_relaxed);
  now.staging_bytes_peak = staging_bytes_peak.load(std::memory_order_relaxed);
  now.peers_failed = peers_failed.value();
  now.abandoned = abandoned.value();
  return now;
}

}  // namespace agmm::transport
