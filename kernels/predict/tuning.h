// A table of tuned plans: the options that were fastest when they were measured. It is consulted
// before any prediction: an exact match first, then the nearest shape.
#pragma once

#include <cstdint>
#include <string>
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
  // One-way rate of the links between the nodes; 0 on one node.
  double between_bytes_per_ns = 0;
};

// `hardware`: that of the problem's ranks.
TuningKey TuningKeyOf(const Problem& problem, const Topology& topology, const Machine& machine,
                      const std::string& hardware);

struct TunedPlan {
  TuningKey key;
  PlanOptions options;  // none is left to be chosen
  double time_us = 0;   // median T of one epoch
  double serial_us = 0;  // that of the fastest serial plan; 0: not measured
  std::string date;      // of the measurement
  std::string place;     // "file:line", or the name of a shipped table
};

// The rates of links under which a tuned plan applies: measurements differ by less than this
// factor, and links of another kind by more.
inline constexpr double kSameRate = 1.25;
// The most by which each dimension may differ from that of the nearest shape, as a factor.
inline constexpr double kNearShape = 2;

class TuningTable {
 public:
  explicit TuningTable(std::vector<TunedPlan> plans = {}) : plans_(std::move(plans)) {}

  struct Match {
    const TunedPlan* plan = nullptr;  // null: none applies
    bool exact = false;               // the shape is the same
  };
  // Of the plans that differ in the shape alone, returns the one with the same shape, or the nearest
  // within kNearShape. Of equally near ones, the first.
  Match Find(const TuningKey& key) const;
  const std::vector<TunedPlan>& plans() const { return plans_; }

 private:
  std::vector<TunedPlan> plans_;
};

}  // namespace agmm
