// Plans that are proved, and the bytes that their ranks send.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/schedule/access.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"

namespace agmm::test {

// The routes on which every rank sends as much as the others.
inline const char* const kBalancedRoutes[] = {"serial", "ring", "bidirectional_ring", "split_ring",
                                              "direct"};

// Dies if there is no plan. Fails if it is wrong.
inline Schedule Proved(const Problem& problem, const Topology& topology,
                       const PlanOptions& options) {
  Schedule schedule = Plan(problem, topology, options).value();
  EXPECT_EQ(Verify(problem, topology, schedule), absl::OkStatus()) << Print(problem, schedule);
  return schedule;
}

// By rank.
inline std::vector<int64_t> SentBytes(const Topology& topology, const Schedule& schedule) {
  std::vector<int64_t> bytes;
  for (const Traffic& traffic : TrafficOf(topology, schedule))
    bytes.push_back(traffic.own_node() + traffic.other_nodes);
  return bytes;
}

}  // namespace agmm::test
