// Carries messages between the "nodes" of one process, and delivers them to the plans there.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/device/executor.h"
#include "kernels/device/transport.h"

namespace agmm::test {

class Network {
 public:
  virtual ~Network() = default;
  // The transport of `node`.
  virtual Transport* from(int node) = 0;

  // The receiving end of one plan on one node.
  struct Endpoint {
    const Problem* problem = nullptr;
    const Schedule* schedule = nullptr;
    std::vector<int> nodes;
    std::vector<Heap*> heaps;          // by rank; null on other nodes
    std::vector<Executor*> executors;  // likewise
    Operands operands;
  };
  virtual void Register(uint64_t plan, int node, Endpoint endpoint) = 0;
  // Requires that no message of the plan is in flight.
  virtual void Unregister(uint64_t plan) = 0;

  // Returns the error of the first message that matched no plan, or OK.
  virtual absl::Status first_misfit() const = 0;
};

}  // namespace agmm::test
