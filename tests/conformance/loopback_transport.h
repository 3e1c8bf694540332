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

#include "kernels/device/message_slot.h"
#include "tests/conformance/network.h"

namespace agmm::test {

class LoopbackTransport final : public Network {
 public:
  // Delays each message by up to `max_delay`, drawn with `seed`.
  LoopbackTransport(uint64_t seed, absl::Duration max_delay);
  ~LoopbackTransport() override;

  Transport* from(int node) override;
  void Register(uint64_t plan, int node, Endpoint endpoint) override;
  void Unregister(uint64_t plan) override;
  absl::Status first_misfit() const override;

  // From here on every send to `node` fails with `status`.
  void FailNode(int node, absl::Status status);
  // From here on messages to `node` are lost, and their sends still succeed.
  void Blackhole(int node);

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
