// A daemon's own part of a status.
#pragma once

#include <string>

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/config/config.h"
#include "daemon/link/usage.h"
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
  v1::NodeUsage Usage() const {
    v1::NodeUsage usage;
    for (const Device* local : runner_->devices()) {
      const DeviceCounters counters = local->counters();
      v1::DeviceUsage* device = usage.add_devices();
      device->set_packed_bytes(counters.packed_bytes);
      device->set_scratch_bytes(counters.scratch_bytes);
      device->set_pack_count(counters.packs);
      device->set_allocation_count(counters.allocations);
      device->set_failure(local->info().failure);
    }
    usage.set_plan_bytes(runner_->plan_bytes());
    if (transport_ != nullptr) usage.set_staging_bytes(transport_->counters().staging_bytes);
    return usage;
  }
  // Adds the answering daemon's usage and metrics.
  void Finish(v1::GetStatusResponse* status) const {
    status->set_cluster(config_.cluster);
    status->set_version(config_.version);
    status->set_config_hash(config_.hash);
    status->set_answering_node(config_.self);
    status->set_sequencer_node(0);
    status->set_insecure(!config_.listen.empty());
    if (config_.self < status->nodes_size()) SetUsage(Usage(), status->mutable_nodes(config_.self));
    status->clear_metrics();
    for (const auto& [name, value] : metrics_->Snapshot()) {
      v1::Metric* metric = status->add_metrics();
      metric->set_name(name);
      metric->set_value(value);
    }
  }
  // Returns the status without a sequencer: the world as configured, not ready because of `reason`.
  v1::GetStatusResponse Alone(const std::string& reason) const {
    v1::GetStatusResponse status;
    status.set_ready(false);
    status.set_reason(reason);
    int rank = 0;
    for (size_t i = 0; i < config_.nodes.size(); ++i) {
      v1::NodeStatus* node = status.add_nodes();
      node->set_index(static_cast<int>(i));
      node->set_name(config_.nodes[i].name);
      node->set_address(config_.nodes[i].address);
      for (const std::string& ip : config_.nodes[i].ips) node->add_ip_addresses(ip);
      const bool self = static_cast<int>(i) == config_.self;
      node->set_state(self     ? v1::NodeStatus::STATE_JOINING
                      : i == 0 ? v1::NodeStatus::STATE_MISSING
                               : v1::NodeStatus::STATE_UNSPECIFIED);
      if (self) node->set_version(config_.version);
      for (int device = 0; device < config_.nodes[i].devices; ++device) {
        v1::DeviceStatus* out = node->add_devices();
        out->set_rank(rank++);
        if (!self) continue;
        out->set_kind(config_.devices[device].kind);
        out->set_thread_count(config_.devices[device].threads);
        out->set_heap_bytes(config_.devices[device].heap_bytes);
      }
    }
    return status;
  }

 private:
  const Config config_;
  const Runner* const runner_;
  const UcxTransport* const transport_;
  const Metrics* const metrics_;
};

}  // namespace agmm
