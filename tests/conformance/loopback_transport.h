// A transport between "nodes" of one process that delivers late and out of order, as a network may.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "kernels/device/arrival.h"
#include "kernels/device/executor.h"
#include "kernels/device/transport.h"

namespace agmm::test {

class LoopbackTransport {
 public:
  // Each message is late by up to `max_delay`, drawn with `seed`.
  LoopbackTransport(uint64_t seed, absl::Duration max_delay);
  ~LoopbackTransport();

  // What `node` sends through.
  Transport* from(int node);

  // The receiving end of one plan on one node.
  struct Endpoint {
    const Problem* problem = nullptr;
    const Schedule* schedule = nullptr;
    std::vector<int> nodes;
    std::vector<Heap*> heaps;          // by rank; null on other nodes
    std::vector<Executor*> executors;  // likewise
    int64_t workspace_offset = 0;
    std::vector<int64_t> operand_offsets;
  };
  void Register(uint64_t plan, int node, Endpoint endpoint);
  void Unregister(uint64_t plan);

  // From here on every send to `node` fails with `status`.
  void FailNode(int node, absl::Status status);
  // From here on what is sent to `node` is lost, and its sender told that all is well.
  void Blackhole(int node);

  // The first message that fitted no plan; OK while there was none.
  absl::Status first_misfit() const;

 private:
  class Port;
  struct Parcel {
    int from = 0, to = 0;
    Message message;
    Rows rows;
    std::function<void(absl::Status)> done;
  };
  void Post(Parcel parcel);
  void Deliver();
  absl::Status Hand(const Parcel& parcel);

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::mt19937_64 random_;
  const int64_t max_delay_us_;
  std::multimap<int64_t, Parcel> due_;  // by CLOCK_MONOTONIC nanoseconds
  std::map<std::pair<uint64_t, int>, Endpoint> endpoints_;
  std::map<int, std::unique_ptr<Port>> ports_;
  std::map<int, absl::Status> failed_;
  std::set<int> blackholes_;
  absl::Status misfit_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace agmm::test
