// A table of tuned plans: the options that were fastest when they were measured. It is consulted
// before any prediction: an exact match first, then the nearest shape.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/dtype.h"
#include "kernels/predict/machine.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/problem.h"
#include "kernels/schedule/topology.h"

namespace agmm {

// The problem, ranks and hardware that a tuned plan is for.
struct TuningKey {
  std::string spec;           // without dtypes
  std::vector<DType> dtypes;  // of the spec's operands, in its order
  std::string mesh;           // "x=4"
  std::vector<int> ranks_per_node;
  int64_t m = 0, n = 0, k = 0;  // k 0 without a product
  std::string hardware;         // of these ranks, each kind once
  // One-way rate of the slowest link between the nodes; 0 on one node, or if it was not measured.
  double between_bytes_per_ns = 0;
  bool operator==(const TuningKey&) const = default;
};

// "A[M_x, K] * B[K, N_x] -> C[M, N_x]", whatever the dtypes are.
std::string SpecWithoutDtypes(const Problem& problem);
// Returns the number of the mesh's ranks on each node, in the order of the ranks. Empty if ranks of
// other nodes come between those of a node: plans for such meshes are not kept.
std::vector<int> RanksPerNode(const Topology& topology);
// Returns the one-way rate of the slowest link between nodes of the topology. 0 on one node, or if
// the machine is a preset, which says nothing about these links.
double MeasuredBetween(const Topology& topology, const Machine& machine);
// `hardware`: that of the problem's ranks.
TuningKey TuningKeyOf(const Problem& problem, const Topology& topology, const Machine& machine,
                      const std::string& hardware);

struct TunedPlan {
  TuningKey key;
  PlanOptions options;   // none is left to be chosen
  double time_us = 0;    // median T of one epoch
  double serial_us = 0;  // that of the fastest serial plan; 0: not measured
  std::string date;      // of the measurement
  bool operator==(const TunedPlan&) const = default;
};

// One line with all that a choice takes from the plan. Plans with the same line give one choice.
std::string ToString(const TunedPlan& plan);

// The rates of links under which a tuned plan applies: measurements differ by less than this
// factor, and links of another kind by more.
inline constexpr double kSameRate = 1.25;
// The most by which each dimension may differ from that of the nearest shape, as a factor.
inline constexpr double kNearShape = 2;
// The most plans of a table.
inline constexpr int kMaxTunedPlans = 4096;

// Returns true if a plan for `tuned` applies to `key`, whatever the shapes are. A rate that was not
// measured is like any other.
bool DifferInShapeAlone(const TuningKey& tuned, const TuningKey& key);
// Returns true if the dimensions are equal.
bool HaveOneShape(const TuningKey& x, const TuningKey& y);

class TuningTable {
 public:
  explicit TuningTable(std::vector<TunedPlan> plans = {}) : plans_(std::move(plans)) {}

  struct Match {
    const TunedPlan* plan = nullptr;  // null: none applies
    bool exact = false;               // the shape is the same
  };
  // Among the plans that differ in the shape alone, returns the one with the same shape, or the
  // nearest within kNearShape, by the sum of the dimensions' absolute logarithms; the first of
  // equally near ones. The plan lives as long as the table.
  Match Find(const TuningKey& key) const;
  const std::vector<TunedPlan>& plans() const { return plans_; }

 private:
  std::vector<TunedPlan> plans_;
};

}  // namespace agmm
