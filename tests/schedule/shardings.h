// Shardings of every kind that a product or a collective can have, in a list that all tests of
// planning share.
#pragma once

#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/split.h"

namespace agmm::test {

struct ShardedCase {
  std::string spec, mesh;
};
inline std::ostream& operator<<(std::ostream& out, const ShardedCase& one) {
  return out << one.spec << " over " << one.mesh;
}

// On meshes of one to three axes.
const std::vector<ShardedCase>& ShardedCases();

struct ShardedPlan {
  std::string name;
  Problem problem;
  Topology topology;
  PlanOptions options;  // resolved: they resolve to themselves
  Recipe recipe;        // that of the options
};

// A case with sizes, a dtype and a number of nodes.
struct Draw {
  ShardedCase sharded;
  Shape shape;
  DType dtype = DType::kF32;
  int nodes = 1;
};

// All plans of a case: each split, each algorithm, with all arrivals in places of
// their own or in a bounded workspace, sends carried or not, chunks and chunks along K 1 and 3, and
// terms of sums in f32 and f16.
// Options that resolve to others are left out. `thorough`: all combinations of these, not each
// against the defaults of the others.
std::vector<ShardedPlan> PlansOf(const Draw& draw, bool thorough);

// Returns the number of steps that are not joins: PlanCost::steps.
int64_t CountWork(const Schedule& schedule);

// One of PlansOf(draw, true), each with the probability of its options; none if 100 draws find no
// options that are kept.
std::optional<ShardedPlan> DrawPlan(const Draw& draw, std::mt19937_64& random);

}  // namespace agmm::test
