// The work of each step of a schedule on the resources of a platform.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/predict/network.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// A part of a step that uses its resources throughout: a multiply, a sum, or the way of a block to
// one of its places.
struct Activity {
  Usages usages;          // with distinct resources; empty if it takes no time
  int to = -1;            // the arrival at to[to] at another rank; -1: none
  double latency_ns = 0;  // from its end to the arrival
};

// The bytes of a rank's shards of all operands.
double ResidentBytes(const Problem& problem);

class StepUsage {
 public:
  // Keeps references to all of them. `workspace_bytes`: of the schedule.
  StepUsage(const Problem& problem, const Platform& platform, int64_t workspace_bytes,
            Network* network)
      : problem_(problem),
        device_(RatesWithin(platform.machine.device,
                            ResidentBytes(problem) + static_cast<double>(workspace_bytes))),
        copy_ns_per_byte_(platform.machine.device.copy_ns_per_byte),
        network_(*network) {}

  // Replaces `activities` by those of a step of `rank`; a join has none. The first steps that are
  // asked for take the burst of a link, so those of a rank are asked for in their order.
  void Of(const Step& step, Rank rank, std::vector<Activity>* activities);

 private:
  void Add(const Transfer& transfer, Rank rank, std::vector<Activity>* activities);
  void Add(const Multiply& multiply, Rank rank, std::vector<Activity>* activities);
  void Add(const Reduce& reduce, Rank rank, std::vector<Activity>* activities);
  void Add(const Join&, Rank, std::vector<Activity>*) {}
  // Adds the way of `bytes` from one rank to another, which must differ. Returns their path.
  const Path& AddPath(Rank from, Rank to, double bytes, Activity* activity);
  // Adds the bytes of a block that a computing step reads or writes at a place.
  void AddAccess(const Block& block, const Place& place, Rank rank, Activity* activity);

  const Problem& problem_;
  const DeviceRates device_;
  const double copy_ns_per_byte_;  // out of memory
  Network& network_;
};

// The bytes of a block at a place, without padding.
double BytesOf(const Block& block, const Place& place);

}  // namespace agmm
