// What one daemon says of itself in a status.
#pragma once

#include <string>

#include "agmm/v1/cluster.pb.h"
#include "daemon/config/config.h"
#include "daemon/job/runner.h"
#include "daemon/observe/metrics.h"

namespace agmm {

// Thread-safe.
class StatusView {
 public:
  // All outlive this.
  StatusView(const Config& config, const Runner* runner, const Metrics* metrics)
      : config_(config), runner_(runner), metrics_(metrics) {}

  // Adds what only the answering daemon knows: its packed bytes, its metrics.
  void Finish(v1::GetStatusResponse* status) const;
  // The status when the sequencer cannot be asked: the world as configured, not ready because of `reason`.
  v1::GetStatusResponse Alone(const std::string& reason) const;

 private:
  const Config config_;
  const Runner* const runner_;
  const Metrics* const metrics_;
};

}  // namespace agmm
