// A daemon's own part of a status.
#pragma once

#include <string>

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/config/config.h"
#include "daemon/node/runner.h"
#include "daemon/observe/metrics.h"
#include "daemon/transport/ucx_transport.h"

namespace agmm {

// Thread-safe.
class StatusView {
 public:
  // Requires that all arguments outlive this. `transport` is null in a world of one node.
  StatusView(const Config& config, const Runner* runner, const UcxTransport* transport,
             const Metrics* metrics)
      : config_(config), runner_(runner), transport_(transport), metrics_(metrics) {}

  // Returns the memory that this node's devices and transport hold now.
  v1::NodeUsage Usage() const;
  // Adds the answering daemon's usage and metrics.
  void Finish(v1::GetStatusResponse* status) const;
  // Returns the status without a sequencer: the world as configured, not ready because of `reason`.
  v1::GetStatusResponse Alone(const std::string& reason) const;

 private:
  const Config config_;
  const Runner* const runner_;
  const UcxTransport* const transport_;
  const Metrics* const metrics_;
};

}  // namespace agmm
