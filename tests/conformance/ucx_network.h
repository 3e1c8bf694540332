// The daemon's own transport between "nodes" of one process: UCX over loopback TCP, one worker a
// node.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "daemon/transport/ucx_transport.h"
#include "tests/conformance/network.h"

namespace agmm::test {

class UcxNetwork final : public Network {
 public:
  // Connects all nodes with each other. Dies if UCX fails.
  explicit UcxNetwork(int nodes);
  ~UcxNetwork() override;

  Transport* from(int node) override;
  ProgressEngine* progress(int node);
  void Register(uint64_t plan, int node, Endpoint endpoint) override;
  void Unregister(uint64_t plan) override;
  absl::Status first_misfit() const override;

  // Bytes that went over the wire, all nodes together.
  int64_t bytes_sent() const;

 private:
  class Node;

  mutable std::mutex mutex_;
  std::map<std::pair<uint64_t, int>, Endpoint> endpoints_;
  absl::Status misfit_;
  std::vector<std::unique_ptr<Node>> nodes_;
};

}  // namespace agmm::test
