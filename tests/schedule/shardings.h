// Every sharding that a product can have without a sum between ranks, in a list that all tests of
// planning share.
#pragma once

#include <string>
#include <vector>

#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/split.h"

namespace agmm::test {

struct ShardedCase {
  const char *spec, *mesh;
};

// On meshes of one to three axes.
const std::vector<ShardedCase>& ShardedCases();

struct ShardedPlan {
  std::string name;
  Problem problem;
  Topology topology;
  PlanOptions options;
};

// How the list is thinned: a random plan of those that a case can have, by splits, algorithms,
// places, chunks and nodes.
struct Draw {
  ShardedCase sharded;
  Shape shape;
  DType dtype = DType::kF32;
  int nodes = 1;
};

// All plans of a case: each split that needs no sum, each algorithm, with all arrivals in places of
// their own or in a bounded workspace, sends carried or not, chunks and chunks along K 1 and 3.
// `thorough`: all combinations of these, not each against the defaults of the others.
std::vector<ShardedPlan> PlansOf(const Draw& draw, bool thorough);

}  // namespace agmm::test
